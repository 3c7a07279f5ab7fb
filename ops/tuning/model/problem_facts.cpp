#include "fusedsc/tuning/model/problem_facts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

namespace fusedsc::tuning {
namespace {

/// The next of parts that ", " separates, but for those in brackets.
std::string_view next_part(std::string_view& text) {
  int depth = 0;
  std::size_t end = 0;
  for (; end < text.size(); ++end) {
    const char c = text[end];
    if (c == '[' || c == '{') ++depth;
    else if (c == ']' || c == '}') --depth;
    else if (c == ',' && depth == 0) break;
  }
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(text.size(), end + 1));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return part;
}

double number(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// "[1,2,3]": up to so many.
std::array<double, 4> numbers(std::string_view text) {
  std::array<double, 4> found{};
  const std::size_t open = text.find('['), close = text.find(']', open);
  if (open == std::string_view::npos || close == std::string_view::npos) return found;
  text = text.substr(open + 1, close - open - 1);
  for (double& value : found) {
    if (text.empty()) break;
    const std::size_t comma = std::min(text.find(','), text.size());
    value = number(text.substr(0, comma));
    text.remove_prefix(std::min(text.size(), comma + 1));
  }
  return found;
}

double size_of_type(std::string_view value) {
  if (value.starts_with("float64")) return 8;
  return value.starts_with("float16") || value.starts_with("bfloat16") ? 2 : 4;
}

bool is_tensor(std::string_view value) { return value.starts_with("float") || value.starts_with("bfloat"); }

double elements(std::string_view value) {
  double product = 1;
  for (const double size : numbers(value)) product *= size > 0 ? size : 1;
  return product;
}

class Reader {
 public:
  explicit Reader(ProblemFacts& facts) : facts_(facts) {}

  void read(std::string_view text, std::string_view within) {
    while (!text.empty()) {
      const std::string_view part = next_part(text);
      const std::size_t brace = part.find('{'), equals = part.find('=');
      if (brace < equals) {
        const std::string_view name = part.substr(0, brace);
        note(name, {});
        read(part.substr(brace + 1, part.size() - brace - 2), name);
      } else if (equals != std::string_view::npos) {
        value(part.substr(0, equals), part.substr(equals + 1), within);
      } else {
        note(part, {});
      }
    }
  }

 private:
  void value(std::string_view name, std::string_view value, std::string_view within) {
    if (is_tensor(value)) facts_.bytes += elements(value) * size_of_type(value);
    if (within == "window") return window(name, value);
    if (within == "windows") {
      if (name == "channels") facts_.window_channels = number(value);
      return;
    }
    if (!within.empty()) {
      if (name == "residual") facts_.residual = true;
      return;
    }
    note(name, value);
  }

  void window(std::string_view name, std::string_view value) {
    const std::array<double, 4> pair = numbers(value);
    if (name == "kernel") facts_.kernel_height = pair[0], facts_.kernel_width = pair[1];
    if (name == "stride") facts_.stride = std::max(pair[0], 1.0);
    if (name == "dilation") facts_.dilation = std::max(pair[0], 1.0);
  }

  void note(std::string_view name, std::string_view value) {
    const std::array<double, 4> sizes = numbers(value);
    if (name == "x") {
      facts_.images = sizes[0], facts_.channels = sizes[1], facts_.height = sizes[2], facts_.width = sizes[3];
      facts_.element_bytes = size_of_type(value);
      facts_.channels_last = value.find("channels_last") != std::string_view::npos;
    } else if (name == "y" || name == "grad_y") {
      facts_.outputs = sizes[1], facts_.out_height = sizes[2], facts_.out_width = sizes[3];
    } else if (name == "weight") {
      facts_.weight_elements = elements(value);
    } else if (name == "groups") {
      facts_.groups = number(value);
    } else if (name == "threads") {
      facts_.threads = number(value);
    } else {
      flag(name);
    }
  }

  void flag(std::string_view name) {
    if (name == "prologue") facts_.prologue = true;
    if (name == "gradient_prologue") facts_.gradient_prologue = true;
    if (name == "epilogue") facts_.epilogue = true;
    if (name == "statistics") facts_.statistics = true;
    if (name == "sums") facts_.sums = true;
    if (name == "bias" || name == "grad_bias") facts_.bias = true;
    if (name == "grad_add") facts_.added = true;
    if (name == "grad_x") facts_.grad_x = true;
    if (name == "grad_weight") facts_.grad_weight = true;
    if (name == "allow_tf32") facts_.is_tf32 = true;
  }

  ProblemFacts& facts_;
};

}  // namespace

double ProblemFacts::products() const {
  const double gradients = (grad_x ? 1.0 : 0.0) + (grad_weight ? 1.0 : 0.0);
  return positions() * weight_elements * std::max(gradients, 1.0);
}

ProblemFacts facts_of(std::string_view problem) {
  ProblemFacts facts;
  Reader(facts).read(problem, {});
  return facts;
}

}  // namespace fusedsc::tuning
