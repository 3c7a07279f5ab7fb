/// What the C++ training programs say to whoever runs them: a progress bar, and the command that goes on.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace program {

/// One line that says where the training is, overwritten by the next: a bar of what room the terminal leaves, and the
/// loss and accuracy of the last steps. Into a file it writes a line every twenty seconds.
class Progress {
 public:
  Progress(int64_t first_step, int64_t steps, int64_t batch_size)
      : first_step_(first_step), steps_(steps), batch_size_(batch_size) {}

  void update(int64_t step, double loss, double accuracy) {
    const double weight = step == first_step_ + 1 ? 1 : 0.05;
    loss_ += weight * (loss - loss_);
    accuracy_ += weight * (accuracy - accuracy_);
    const auto now = Clock::now();
    if (step < steps_ && now - shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(20))) {
      return;
    }
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double steps_per_second = static_cast<double>(step - first_step_) / seconds;
    const int left = static_cast<int>(static_cast<double>(steps_ - step) / steps_per_second);
    char text[160];
    const int length =
        std::snprintf(text, sizeof text, " %ld/%ld, loss %.3f, accuracy %.1f%%, %.0f images/s, %d:%02d left",
                      static_cast<long>(step), static_cast<long>(steps_), loss_, 100 * accuracy_,
                      steps_per_second * static_cast<double>(batch_size_), left / 60, left % 60);
    std::printf("%s%s%s%s", terminal_ ? "\r" : "", bar(step, length).c_str(), text, terminal_ ? "\x1b[K" : "\n");
    std::fflush(stdout);
  }

  /// Before something else is said.
  void end_line() const {
    if (terminal_) {
      std::printf("\n");
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string bar(int64_t step, int text_length) const {
    winsize window{};
    const int columns = terminal_ && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
    const auto width = static_cast<int64_t>(std::clamp(columns - text_length - 3, 0, 40));
    if (width < 5) {
      return "step";
    }
    const int64_t full = width * step / steps_;
    return "[" + std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(width - full), '-') +
           "]";
  }

  int64_t first_step_, steps_, batch_size_;
  double loss_ = 0, accuracy_ = 0;
  bool terminal_ = isatty(STDOUT_FILENO) == 1;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
};

/// A word as a shell takes it.
inline std::string quoted(std::string_view word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string result = "'";
  for (const char letter : word) {
    result += letter == '\'' ? std::string("'\"'\"'") : std::string(1, letter);
  }
  return result + "'";
}

/// This program's own command line, with --resume.
inline std::string command_to_resume(int argc, char** argv) {
  std::string command = quoted(argv[0]);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--resume") {
      command += " " + quoted(argv[i]);
    }
  }
  return command + " --resume";
}

}  // namespace program
