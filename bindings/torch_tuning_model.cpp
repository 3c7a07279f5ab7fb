/// What a model of speed says of problems and configs, for Python, which fits it (benchmarks/fit.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <limits>

#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/model/ranker.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using Strings = std::vector<std::string>;

tuning::Machine machine_of(double multiprocessors) {
  check(multiprocessors >= 1, "multiprocessors: there are ", multiprocessors, ", which must be at least 1");
  tuning::Machine machine;
  machine.multiprocessors = multiprocessors;
  return machine;
}

Strings feature_names() { return tuning::feature_names(); }

/// Row by row, a row for each choice ("kernel/config"); and the roofline's microseconds.
std::tuple<at::Tensor, double> features(std::string problem, Strings choices, double multiprocessors) {
  const tuning::Machine machine = machine_of(multiprocessors);
  const tuning::ProblemFacts facts = tuning::facts_of(problem);
  const auto width = static_cast<std::int64_t>(tuning::feature_names().size());
  at::Tensor table = at::empty({static_cast<std::int64_t>(choices.size()), width}, at::kDouble);
  auto* row = table.mutable_data_ptr<double>();
  tuning::Features values;
  tuning::append_problem_features(values, facts, machine);
  const std::size_t of_problem = values.size();
  for (const std::string& choice : choices) {
    values.resize(of_problem);
    tuning::append_config_features(values, facts, tuning::words_of(choice).parsed_config(), machine);
    row = std::copy(values.begin(), values.end(), row);
  }
  return {table, tuning::roofline_us(facts, machine)};
}

/// Microseconds that a ranker, a file's contents, predicts for each choice; infinite for those it knows nothing of.
std::vector<double> predictions(std::string ranker, std::string role, std::string problem, Strings choices,
                                double multiprocessors) {
  const tuning::Ranker parsed = tuning::Ranker::parsed(ranker);
  const auto trees = parsed.of(role);
  std::vector<double> found(choices.size(), std::numeric_limits<double>::infinity());
  if (trees == nullptr) return found;
  tuning::Predictions of(*trees, problem, machine_of(multiprocessors));
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const tuning::ChoiceWords words = tuning::words_of(choices[i]);
    const auto us = of.microseconds(words.kernel, words.parsed_config());
    if (us) found[i] = *us;
  }
  return found;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fusedsc, m) {
  m.def("_tune_feature_names() -> str[]", translated<feature_names>);
  m.def("_tune_features(str problem, str[] choices, float multiprocessors) -> (Tensor, float)", translated<features>);
  m.def("_tune_predictions(str ranker, str role, str problem, str[] choices, float multiprocessors) -> float[]",
        translated<predictions>);
}

}  // namespace fusedsc::aten
