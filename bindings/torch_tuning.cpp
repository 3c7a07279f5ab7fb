/// Which kernel shall run, and which was measured to be the fastest: for Python, beside fusedsc/tuning/ for C++. Ops of
/// numbers and strings, so that one library serves every version of Python.
#include <torch/library.h>

#include <algorithm>
#include <chrono>

#include "fusedsc/tuning/choices.h"
#include "fusedsc/tuning/compiler/allowed.h"
#include "fusedsc/tuning/compiler/compiler.h"
#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/recorder.h"
#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/store/store.h"
#include "fusedsc/tuning/trace.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using Strings = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

// -------------------------------------------------------------------------------------------------------------- force

std::tuple<Strings, Strings> kernels() {
  std::tuple<Strings, Strings> columns;
  for (const tuning::RoleNames& role : tuning::roles()) {
    for (const char* kernel : role.kernels) {
      std::get<0>(columns).emplace_back(role.name);
      std::get<1>(columns).emplace_back(kernel);
    }
  }
  return columns;
}

std::string force(std::string role, std::string choice) { return tuning::force(role, choice); }

// ----------------------------------------------------------------------------------------------------------- measuring

void record(bool on) {
  if (!on) return tuning::stop_recording();
  tuning::check_not_frozen();
  tuning::start_recording();
}

std::shared_ptr<tuning::Problem> problem_number(std::int64_t number) {
  const tuning::Problems problems = tuning::recorded_problems();
  check(number >= 0 && number < static_cast<std::int64_t>(problems.size()), "problem: there is no number ", number,
        " among ", problems.size());
  return problems[static_cast<std::size_t>(number)];
}

std::tuple<Strings, Strings, Strings, Numbers, Numbers> recorded_problems() {
  std::tuple<Strings, Strings, Strings, Numbers, Numbers> columns;
  auto& [roles, texts, results, calls, depths] = columns;
  for (const auto& problem : tuning::recorded_problems()) {
    roles.emplace_back(problem->role);
    texts.push_back(problem->text);
    results.push_back(problem->result);
    calls.push_back(problem->calls);
    depths.push_back(problem->depth);
  }
  return columns;
}

std::tuple<std::string, std::string> taken(std::int64_t problem) {
  const tuning::Taken taken = problem_number(problem)->taken();
  return {taken.choice, taken.why};
}

Strings candidates(std::int64_t problem, std::int64_t most) {
  return problem_number(problem)->candidates(static_cast<std::size_t>(std::max<std::int64_t>(most, 1)));
}

Strings choices(std::int64_t problem) { return problem_number(problem)->choices(); }

std::string source(std::int64_t problem, std::string choice) { return problem_number(problem)->source(choice); }

/// Of the compilers at run time: what it is for, which it is, where it was found, or why there is none.
std::tuple<Strings, Strings, Strings, Strings> compilers() {
  std::tuple<Strings, Strings, Strings, Strings> columns;
  auto& [gpus, versions, libraries, reasons] = columns;
  for (const auto& [gpu, kind] :
       {std::pair("cuda", tuning::CompilerKind::nvrtc), std::pair("hip", tuning::CompilerKind::hiprtc)}) {
    const tuning::RuntimeCompiler& compiler = tuning::runtime_compiler(kind);
    gpus.emplace_back(gpu);
    versions.push_back(compiler.version());
    libraries.push_back(compiler.library());
    reasons.push_back(compiler.why_not());
  }
  return columns;
}

std::tuple<Strings, Numbers> buffers(std::int64_t problem) {
  std::tuple<Strings, Numbers> columns;
  for (const tuning::Buffer& buffer : problem_number(problem)->buffers()) {
    std::get<0>(columns).emplace_back(name_of(buffer.dtype));
    std::get<1>(columns).push_back(buffer.bytes);
  }
  return columns;
}

/// Seconds of this thread for so many runs, each with the next copy of the memory. On a GPU they are only put into its
/// stream.
double run_candidate(std::int64_t problem_, std::string choice, at::TensorList memory, std::int64_t runs) {
  const auto problem = problem_number(problem_);
  const std::size_t each = problem->buffers().size();
  check(each > 0 && !memory.empty() && memory.size() % each == 0, "memory: there are ", memory.size(),
        " tensors, which are no whole copies of ", each);
  const c10::Device device = memory[0].device();
  const c10::DeviceGuard guard(device);
  const tuning::Trial trial = problem->plan(choice);
  std::vector<std::function<void(const Execution&)>> copies;
  for (std::size_t first = 0; first < memory.size(); first += each) {
    std::vector<void*> addresses;
    for (const at::Tensor& tensor : memory.slice(first, each)) addresses.push_back(tensor.mutable_data_ptr());
    copies.push_back(trial.bind(addresses));
  }
  Execution execution = execution_on(device);
  execution.threads = problem->threads;
  const c10::DataPtr workspace = workspace_on(device, trial.workspace_bytes);
  execution.workspace = workspace.get();
  execution.workspace_bytes = trial.workspace_bytes;
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < runs; ++i) copies[static_cast<std::size_t>(i) % copies.size()](execution);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The choices with their microseconds, the fastest first. Returns why it cannot be stored, or "".
std::string adopt(std::int64_t problem_, Strings choices, std::vector<double> microseconds, bool stores) {
  const auto problem = problem_number(problem_);
  check(!choices.empty() && choices.size() == microseconds.size(), "choices: there are ", choices.size(), " and ",
        microseconds.size(), " times");
  tuning::Entry entry{tuning::environment(problem->device),
                      problem->role,
                      problem->text,
                      tuning::sources_of(problem->role),
                      tuning::library_version(),
                      {},
                      {}};
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const tuning::ChoiceWords words = tuning::words_of(choices[i]);
    const tuning::Measured measured{std::string(words.kernel), words.parsed_config(), microseconds[i]};
    if (i == 0) entry.best = measured;
    else entry.others.push_back(measured);
  }
  try {
    tuning::adopt(entry, stores);
  } catch (const tuning::StoreError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fusedsc, m) {
  // "" forces nothing any more; returns what was forced before.
  m.def("_force(str role, str choice) -> str", translated<force>);
  m.def("_kernels() -> (str[] role, str[] kernel)", translated<kernels>);

  m.def("_tune_record(bool on) -> ()", translated<record>);
  m.def("_tune_problems() -> (str[] role, str[] problem, str[] result, int[] calls, int[] depth)",
        translated<recorded_problems>);
  m.def("_tune_taken(int problem) -> (str choice, str why)", translated<taken>);
  m.def("_tune_candidates(int problem, int most) -> str[]", translated<candidates>);
  m.def("_tune_compile(bool on) -> ()", translated<tuning::compile_candidates>);
  m.def("_tune_choices(int problem) -> str[]", translated<choices>);
  m.def("_tune_source(int problem, str choice) -> str", translated<source>);
  m.def("_compilers() -> (str[] gpu, str[] version, str[] library, str[] why_not)", translated<compilers>);
  m.def("_tune_buffers(int problem) -> (str[] dtype, int[] bytes)", translated<buffers>);
  m.def("_tune_run(int problem, str choice, Tensor[] memory, int runs) -> float", translated<run_candidate>);
  m.def("_tune_adopt(int problem, str[] choices, float[] microseconds, bool stores) -> str", translated<adopt>);
}

}  // namespace fusedsc::aten
