/// One short analytic model of a kernel's time, and the numbers that correct it: the roofline, and what a config makes
/// of the problem's sizes: tiles, what of them is waste, waves of blocks. ranker.h has trees over them, fitted to
/// measured rows; Python fits them to the same numbers (bindings/torch_tuning.cpp), so that there is one reading of
/// both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/model/problem_facts.h"

namespace fusedsc::tuning {

/// What is known of a GPU without a measurement.
struct Machine {
  double multiprocessors = 132;
  double bytes_per_us = 3e6;     ///< of its memory
  double products_per_us = 3e8;  ///< of 16 bits; of TF32 half as many, of float32 a sixteenth
};

/// Microseconds on the roofline, and a launch.
double roofline_us(const ProblemFacts& facts, const Machine& machine);

using Features = std::vector<double>;

/// Of a problem, the same for all its configs; then of a config. What does not apply is 0.
void append_problem_features(Features& features, const ProblemFacts& facts, const Machine& machine);
void append_config_features(Features& features, const ProblemFacts& facts, const Config& config,
                            const Machine& machine);

/// Their names, in that order.
std::vector<std::string> feature_names();

}  // namespace fusedsc::tuning
