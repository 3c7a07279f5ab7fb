/// Trains MobileNetV2 with fused depthwise-separable blocks on Fashion-MNIST, without Python: libtorch and fusedsc's
/// operators. `mobilenetv2 --help` has the options.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <optional>
#include <sstream>
#include <string>

#include "fashion_mnist_data.h"
#include "mobilenetv2_model.h"
#include "program.h"

namespace {

using fashion_mnist::Batches;
using fashion_mnist::Images;
using fashion_mnist::UserError;
using mobilenetv2::MobileNetV2;

constexpr int kInterrupted = 130;
constexpr double kMomentum = 0.9;
volatile std::sig_atomic_t interrupted = 0;

struct Options {
  std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
  std::filesystem::path checkpoint = "mobilenetv2.pt";
  bool resume = false;
  int64_t epochs = 3;
  int64_t batch_size = 128;
  int64_t checkpoint_every = 100;
  std::optional<int64_t> limit_train, limit_test;
  double lr = 0.1;
  double weight_decay = 5e-4;
  double width = 1.0;
  std::string device = "auto";
  uint64_t seed = 0;
  int threads = 0;
};

/// The one-cycle schedule: a cosine from lr/25 up to lr over the first 30% of the steps, then down to nearly nothing.
double learning_rate(double peak, int64_t step, int64_t steps) {
  const double warm_up = 0.3 * static_cast<double>(steps);
  const double at = static_cast<double>(step);
  const bool rising = at < warm_up;
  const double from = rising ? peak / 25 : peak;
  const double to = rising ? peak : peak / 250'000;
  const double part = rising ? at / warm_up : (at - warm_up) / (static_cast<double>(steps) - warm_up);
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

/// A network with its optimizer, and how many steps they have taken.
struct Training {
  MobileNetV2 model;
  torch::optim::SGD optimizer;
  torch::Device device;
  int64_t step = 0;

  Training(const Options& options, torch::Device device)
      : model(fashion_mnist::kClasses, options.width),
        optimizer(
            model->parameters(),
            torch::optim::SGDOptions(options.lr).momentum(kMomentum).weight_decay(options.weight_decay).nesterov(true)),
        device(device) {
    model->to(device);  // in place: the optimizer's parameters are these
    for (torch::Tensor& parameter : model->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
  }

  /// Writes a temporary file beside `path`, flushes it to the disk and renames it: no reader sees half a file.
  void save(const std::filesystem::path& path) const {
    torch::serialize::OutputArchive archive, model_archive, optimizer_archive;
    model->save(model_archive);
    optimizer.save(optimizer_archive);
    archive.write("model", model_archive);
    archive.write("optimizer", optimizer_archive);
    archive.write("step", torch::tensor(step));
    std::ostringstream stream;
    archive.save_to(stream);
    const std::string content = stream.str();

    const std::string temporary = path.string() + ".new";
    const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    bool written = file >= 0;
    for (size_t done = 0; written && done < content.size();) {
      const ssize_t count = write(file, content.data() + done, content.size() - done);
      written = count >= 0;
      done += written ? static_cast<size_t>(count) : 0;
    }
    written = written && fsync(file) == 0;
    const int error = errno;
    if (file >= 0) {
      close(file);
    }
    if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
      const std::string reason = std::strerror(written ? errno : error);
      unlink(temporary.c_str());
      throw UserError(path.string() + ": cannot be written (" + reason + "); choose another file with --checkpoint");
    }
  }

  void load(const std::filesystem::path& path) {
    if (!std::filesystem::exists(path)) {
      throw UserError("--resume: there is no checkpoint " + path.string() + "; name it with --checkpoint");
    }
    try {
      torch::serialize::InputArchive archive, model_archive, optimizer_archive;
      archive.load_from(path.string(), device);
      archive.read("model", model_archive);
      archive.read("optimizer", optimizer_archive);
      model->load(model_archive);
      optimizer.load(optimizer_archive);
      torch::Tensor steps;
      archive.read("step", steps);
      step = steps.item<int64_t>();
    } catch (const std::exception&) {
      throw UserError(path.string() +
                      ": a damaged checkpoint, or one of another --width; start again without --resume");
    }
  }
};

double test_accuracy(MobileNetV2& model, const Images& images, torch::Device device) {
  const torch::NoGradGuard no_grad;
  model->eval();
  constexpr int64_t kBatch = 500;
  int64_t correct = 0;
  for (int64_t start = 0; start < images.size(); start += kBatch) {
    const torch::Tensor pixels = images.pixels.slice(0, start, start + kBatch).to(device);
    const torch::Tensor labels = images.labels.slice(0, start, start + kBatch).to(device);
    correct += model(fashion_mnist::normalize(pixels)).argmax(1).eq(labels).sum().item<int64_t>();
  }
  return static_cast<double>(correct) / static_cast<double>(images.size());
}

/// Whether fusedsc is built with kernels for the GPU that libtorch sees.
bool fused_blocks_run_on_gpu() {
  try {
    const torch::NoGradGuard no_grad;
    MobileNetV2 model(fashion_mnist::kClasses, 0.1);
    model->to(torch::kCUDA);
    model(torch::zeros({2, 3, 8, 8}, torch::kCUDA));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// The device named; "auto" is the GPU where there is one that the fused blocks run on.
torch::Device choose_device(const std::string& name) {
  if (name == "cpu" || (name == "auto" && !torch::cuda::is_available())) {
    return torch::kCPU;
  }
  if (!torch::cuda::is_available()) {
    throw UserError("--device: libtorch finds no GPU; use --device cpu");
  }
  if (fused_blocks_run_on_gpu()) {
    return torch::kCUDA;
  }
  if (name == "auto") {
    return torch::kCPU;
  }
  throw UserError("--device: this build of fusedsc has no kernels for this GPU; use --device cpu");
}

int train(const Options& options, const std::string& command_to_resume) {
  const torch::Device device = choose_device(options.device);
  const Images test_images = fashion_mnist::load(options.data, "t10k").first(options.limit_test.value_or(INT64_MAX));
  Batches batches(fashion_mnist::load(options.data, "train").first(options.limit_train.value_or(INT64_MAX)),
                  options.batch_size, options.seed);
  torch::manual_seed(options.seed);
  Training training(options, device);
  if (options.resume) {
    training.load(options.checkpoint);
  }
  const int64_t steps = options.epochs * batches.steps_per_epoch();
  program::Progress progress(training.step, steps, options.batch_size);
  while (training.step < steps && interrupted == 0) {
    const auto batch = batches.at(training.step);
    const torch::Tensor images = batch.first.to(device), labels = batch.second.to(device);
    auto& group = static_cast<torch::optim::SGDOptions&>(training.optimizer.param_groups()[0].options());
    group.lr(learning_rate(options.lr, training.step, steps));
    torch::manual_seed(options.seed + static_cast<uint64_t>(training.step));  // dropout's, so that a resumed run agrees
    training.model->train();
    training.optimizer.zero_grad();
    const torch::Tensor scores = training.model(images);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, labels);
    loss.backward();
    training.optimizer.step();
    const double loss_value = loss.item<double>();
    if (!std::isfinite(loss_value)) {  // the checkpoint that is there is from before
      progress.end_line();
      throw UserError("--lr: the loss is " + std::to_string(loss_value) + " after step " +
                      std::to_string(training.step + 1) + ", so the run has diverged; start again with a lower one");
    }
    ++training.step;
    progress.update(training.step, loss_value, scores.argmax(1).eq(labels).to(torch::kFloat).mean().item<double>());
    if (training.step % batches.steps_per_epoch() == 0) {
      progress.end_line();
      std::printf("epoch %ld: test accuracy %.2f%%\n", training.step / batches.steps_per_epoch(),
                  100 * test_accuracy(training.model, test_images, device));
    }
    if (training.step % options.checkpoint_every == 0) {
      training.save(options.checkpoint);
    }
  }
  training.save(options.checkpoint);
  if (interrupted != 0) {
    progress.end_line();
    std::printf("Interrupted after step %ld. To go on: %s\n", training.step, command_to_resume.c_str());
    return kInterrupted;
  }
  std::printf("Written: %s\n", options.checkpoint.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains MobileNetV2 with fused depthwise-separable blocks on Fashion-MNIST.");
  app.footer(
      "examples:\n  mobilenetv2\n  mobilenetv2 --epochs 1 --limit-train 1280 --width 0.35\n  mobilenetv2 --resume");
  app.option_defaults()->always_capture_default();
  const CLI::Range count(1, INT_MAX);
  app.add_option("--data", options.data, "Folder with the four IDX files, gzipped or not");
  app.add_option("--checkpoint", options.checkpoint, "File to write, and to resume from");
  app.add_flag("--resume", options.resume, "Go on from the checkpoint; give the same options as before");
  app.add_option("--checkpoint-every", options.checkpoint_every, "Steps between checkpoints")->check(count);
  app.add_option("--epochs", options.epochs, "Passes over the training images")->check(count);
  app.add_option("--batch-size", options.batch_size, "Images per step")->check(CLI::Range(2, 1 << 20));
  app.add_option("--lr", options.lr, "Peak of the one-cycle learning rate")->check(CLI::Range(1e-12, 1e6));
  app.add_option("--weight-decay", options.weight_decay, "Weight decay")->check(CLI::Range(0.0, 1e6));
  app.add_option("--width", options.width, "Width multiplier of the network")->check(CLI::Range(0.01, 100.0));
  app.add_option("--seed", options.seed, "Seed of the weights, the order, the augmentation and dropout");
  app.add_option("--limit-train", options.limit_train, "Train on the first so many images only")->check(count);
  app.add_option("--limit-test", options.limit_test, "Test on the first so many images only")->check(count);
  app.add_option("--device", options.device, "auto: the GPU, if there is one that the blocks run on")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--threads", options.threads, "CPU threads; 0: all cores")->check(CLI::Range(0, 1 << 20));
  CLI11_PARSE(app, argc, argv);

  if (options.threads > 0) {
    torch::set_num_threads(options.threads);
  }
  for (const int number : {SIGINT, SIGTERM}) {
    std::signal(number, [](int received) {
      interrupted = 1;
      std::signal(received, SIG_DFL);  // a second one does not wait
    });
  }
  try {
    return train(options, program::command_to_resume(argc, argv));
  } catch (const UserError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  return 1;
}
