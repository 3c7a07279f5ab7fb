/// Which kernel shall run, and which was measured to be the fastest: for Python, beside fusedsc/tuning/ for C++. Ops of
/// numbers and strings, so that one library serves every version of Python.
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "fusedsc/tuning/choices.h"
#include "fusedsc/tuning/compiler/binaries.h"
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

// --------------------------------------------------------------------------------------------------------------- store

tuning::Store store() {
  const auto store = tuning::Store::of_user();
  check(store.has_value(), "there is no folder of measured choices: neither FUSEDSC_CACHE_DIR nor HOME is set");
  return *store;
}

void say_broken(const std::filesystem::path& file, const std::string& why) {
  std::cerr << "fusedsc: " + file.string() + " is ignored: " + why + '\n';
}

bool is_stale(const tuning::Entry& entry) { return entry.sources != tuning::sources_of(entry.role); }

/// A row for each entry: environment, role, problem, choice, microseconds, whether it is of other kernels than these.
std::tuple<Strings, Strings, Strings, Strings, std::vector<double>, Numbers> stored_choices() {
  std::tuple<Strings, Strings, Strings, Strings, std::vector<double>, Numbers> columns;
  auto& [environments, roles, problems, choices, microseconds, stale] = columns;
  for (const tuning::Entry& entry : store().entries(say_broken)) {
    environments.push_back(entry.environment);
    roles.push_back(entry.role);
    problems.push_back(entry.problem);
    choices.push_back(tuning::Chosen{"", entry.best.kernel.c_str(), entry.best.config, ""}.choice());
    microseconds.push_back(entry.best.microseconds);
    stale.push_back(is_stale(entry) ? 1 : 0);
  }
  return columns;
}

/// Why the file cannot be written, or "". What was measured with other kernels is left out.
std::tuple<std::int64_t, std::string> export_choices(std::string file) {
  std::vector<tuning::Entry> entries = store().entries(say_broken);
  std::erase_if(entries, is_stale);
  const auto count = static_cast<std::int64_t>(entries.size());
  try {
    tuning::write_whole(file, tuning::table_of(std::move(entries)));
  } catch (const tuning::StoreError& error) {
    return {0, error.what()};
  }
  return {count, ""};
}

/// Into the user's store, what is faster than what is there. How many of how many; and why not all, or "".
std::tuple<std::int64_t, std::int64_t, std::string> merge_choices(Strings files) {
  std::vector<tuning::Entry> entries;
  for (const std::string& file : files) {
    try {
      const auto contents = tuning::contents_of(file);
      check(contents.has_value(), "there is no such file");
      for (tuning::Entry& entry : tuning::entries_of(*contents)) entries.push_back(std::move(entry));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(file + " is no table: " + error.what());
    }
  }
  const tuning::Store mine = store();
  std::int64_t taken = 0;
  std::string why;
  for (const tuning::Entry& entry : entries) {
    std::optional<tuning::Entry> before;
    try {
      before = mine.read(entry.environment, entry.role, entry.problem);
    } catch (const InvalidArgument&) {  // not worth keeping
    }
    const bool is_better = !before || is_stale(*before) || before->best.microseconds > entry.best.microseconds;
    if (is_stale(entry) || !is_better) continue;
    try {
      mine.write(entry);
    } catch (const tuning::StoreError& error) {
      why = error.what();
      break;
    }
    ++taken;
  }
  tuning::forget_choices();
  return {taken, static_cast<std::int64_t>(entries.size()), why};
}

/// How many entries there were; and why not all are gone, or "".
std::tuple<std::int64_t, std::string> clear_choices() {
  try {
    const auto count = static_cast<std::int64_t>(store().clear());
    tuning::forget_choices();
    if (const auto binaries = tuning::Binaries::of_user()) binaries->clear();
    return {count, ""};
  } catch (const tuning::StoreError& error) {
    return {0, error.what()};
  }
}

std::string store_path() { return store().root().string(); }

void use_tables_of(std::string folder) { tuning::use_tables_of(folder); }

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

  m.def("_cache_path() -> str", translated<store_path>);
  m.def("_cache_choices() -> (str[] environment, str[] role, str[] problem, str[] choice, float[] us, int[] stale)",
        translated<stored_choices>);
  m.def("_cache_export(str file) -> (int count, str why_not)", translated<export_choices>);
  m.def("_cache_merge(str[] files) -> (int taken, int given, str why_not)", translated<merge_choices>);
  m.def("_cache_clear() -> (int count, str why_not)", translated<clear_choices>);
  m.def("_cache_forget() -> ()", translated<tuning::forget_choices>);
  m.def("_use_tables_of(str folder) -> ()", translated<use_tables_of>);
}

}  // namespace fusedsc::aten
