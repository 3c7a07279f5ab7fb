/// make_samples <folder>: writes the texts of the generated kernels of gpu/generated_samples.h as sources of the tests.
#include <fstream>
#include <iostream>
#include <set>

#include "gpu/generated_samples.h"

namespace fusedsc::reference {
namespace {

std::string literal_of(const std::string& text) {
  std::string literal = "\"";
  for (const char character : text) {
    if (character == '\n') literal += "\\n\" \\\n  \"";
    else if (character == '"' || character == '\\') (literal += '\\') += character;
    else literal += character;
  }
  return literal + '"';
}

template <class Samples>
void write(const std::string& file, Samples (*samples_of)(DataType)) {
  std::set<std::string> texts;
  for (const GpuTarget& target : gpu_targets()) {
    use_gpu_wave_size(target.wave_size);
    std::size_t number = 0;
    const Samples samples = samples_of(target.dtype);
    for (const auto& problem : samples.problems) {
      const auto arguments = arguments_of_problem(problem);
      for (const tuning::Config& config : sampled(samples, arguments, number++)) {
        texts.insert(samples.kernel.source(arguments, config));
      }
    }
  }
  std::ofstream out(file);
  out << "// Made by make_samples.\n";
  for (const std::string& text : texts) {
    out << "\n#undef FUSEDSC_GENERATED_TEXT\n#define FUSEDSC_GENERATED_TEXT \\\n  " << literal_of(text) << "\n" << text;
  }
  out.close();
  check(out.good(), file, " cannot be written");
}

}  // namespace
}  // namespace fusedsc::reference

int main(int count, char** arguments) {
  using namespace fusedsc;
  using namespace fusedsc::reference;
  if (count != 2) {
    std::cerr << "make_samples <folder>\n";
    return 2;
  }
  use_memory(gpu_memory());
  align_tensors(true);
  const std::string folder = arguments[1];
  write(folder + "/pointwise_samples.cpp", pointwise_samples);
  write(folder + "/depthwise_samples.cpp", depthwise_samples);
  write(folder + "/depthwise_input_samples.cpp", depthwise_input_samples);
  write(folder + "/depthwise_weight_samples.cpp", depthwise_weight_samples);
  write(folder + "/pointwise_input_samples.cpp", pointwise_input_samples);
  write(folder + "/pointwise_weight_samples.cpp", pointwise_weight_samples);
  write(folder + "/pointwise_fragments_samples.cpp", pointwise_fragments_samples);
  write(folder + "/pointwise_input_fragments_samples.cpp", pointwise_input_fragments_samples);
  return 0;
}
