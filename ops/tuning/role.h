/// The registry: what kernels there are for a role, each an entry of plain data, and the one mechanism that chooses
/// among them.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fusedsc/common/status.h"
#include "fusedsc/runtime/implementation.h"
#include "fusedsc/runtime/plan.h"
#include "fusedsc/tuning/choices.h"
#include "fusedsc/tuning/compiler/allowed.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/model/ranking.h"
#include "fusedsc/tuning/problem_text.h"
#include "fusedsc/tuning/recorder.h"
#include "fusedsc/tuning/trace.h"

namespace fusedsc::tuning {

/// A kernel family in one role.
template <class Arguments>
struct Kernel {
  const char* name;
  /// Empty if it can run the arguments, else the reason why not: types, strides, windows, device, numerics. Never an
  /// opinion about speed.
  std::string (*unsupported)(const Arguments&);
  /// Of arguments that it supports: all configs that fit, at least one.
  Configs (*configs)(const Arguments&);
  /// The workspace and the launch, worked out but for addresses. Throws Unsupported where the config does not fit.
  Plan<Arguments> (*plan)(const Arguments&, const Config&, int threads);
  /// Of kernels that are made for their problem: the text. Throws Unsupported where the config does not fit.
  std::string (*source)(const Arguments&, const Config&) = nullptr;
};

/// What is taken for some arguments.
template <class Arguments>
struct Choice {
  const Kernel<Arguments>* kernel = nullptr;
  Config config;

  explicit operator bool() const { return kernel != nullptr; }
};

template <class Arguments>
struct Role {
  const char* name;  ///< as "depthwise_conv2d.forward"
  std::span<const Kernel<Arguments>> (*kernels)();
  /// The opinion about speed: the kernel and config that are taken where nothing is forced; none where no kernel can.
  Choice<Arguments> (*prior)(const Arguments&);
  /// Likewise, of a kernel that is given and can run the arguments; it may not fit where the prior would not take the
  /// kernel.
  Config (*prior_config)(const Kernel<Arguments>&, const Arguments&);
};

/// Of a kernel with nothing to choose about it: throws Unsupported where there is a config.
inline void check_no_config(const char* kernel, const Config& config) {
  if (config != Config()) {
    throw Unsupported(std::string(kernel) + ": there is nothing to choose about it, but its config is " +
                      printed(config));
  }
}

/// Of a kernel that takes what it lists: throws Unsupported, saying what there is, where a config is neither the
/// prior's nor one of configs(arguments).
template <class Arguments>
void check_listed(const char* kernel, const Arguments& arguments, const Config& config, const Config& prior,
                  Configs (*configs)(const Arguments&)) {
  if (config == prior) return;
  std::string others;
  for (const Config& one : configs(arguments)) {
    if (one == config) return;
    others += (others.empty() ? "" : "; ") + printed(one);
  }
  throw Unsupported(std::string(kernel) + ": \"" + printed(config) +
                    "\" is none of its configs for this problem: " + others);
}

/// The entry of an implementation with nothing to choose about it.
template <auto kImplementation>
auto kernel_of() {
  return []<class Arguments>(const Implementation<Arguments>& implementation) {
    return Kernel<Arguments>{.name = implementation.name,
                             .unsupported = implementation.why_not,
                             .configs = [](const Arguments&) { return Configs{Config()}; },
                             .plan =
                                 [](const Arguments& arguments, const Config& config, int threads) {
                                   check_no_config(kImplementation().name, config);
                                   return kImplementation().plan_for(arguments, threads);
                                 }};
  }(kImplementation());
}

/// The first that can run the arguments, with the first of its configs.
template <class Arguments>
Choice<Arguments> first_of(std::span<const Kernel<Arguments>> kernels, const Arguments& arguments) {
  for (const Kernel<Arguments>& kernel : kernels) {
    if (kernel.unsupported(arguments).empty()) return {&kernel, kernel.configs(arguments).at(0)};
  }
  return {};
}

template <class Arguments>
std::vector<const char*> names_of(std::span<const Kernel<Arguments>> kernels) {
  std::vector<const char*> names;
  for (const Kernel<Arguments>& kernel : kernels) names.push_back(kernel.name);
  return names;
}

template <class Arguments>
const Kernel<Arguments>& kernel_named(std::span<const Kernel<Arguments>> kernels, std::string_view name) {
  return *std::find_if(kernels.begin(), kernels.end(), [&](const auto& kernel) { return kernel.name == name; });
}

/// The prior's config of a kernel that can run the arguments, or, where it does not fit, the first that does.
/// `threads`: those that it is for, as what a kernel is made of is planned, too, and noted down where somebody records.
template <class Arguments>
Config fitting_config(const Role<Arguments>& role, const Kernel<Arguments>& kernel, const Arguments& arguments,
                      int threads) {
  try {
    const Config config = role.prior_config(kernel, arguments);
    kernel.plan(arguments, config, threads);
    return config;
  } catch (const Unsupported&) {
    return kernel.configs(arguments).at(0);
  }
}

/// Every kernel of the role with the reason why it cannot run the arguments, a line each.
template <class Arguments>
std::string reasons(const Role<Arguments>& role, const Arguments& arguments) {
  std::string lines;
  for (const Kernel<Arguments>& kernel : role.kernels()) {
    const std::string reason = kernel.unsupported(arguments);
    lines += std::string("\n  ") + kernel.name + ": " + (reason.empty() ? "it can" : reason);
  }
  return lines;
}

/// Whether the role has such a kernel that can run the arguments with that config: one of its own, or what it would be
/// taken with. What is read from a file is tried by nothing less.
template <class Arguments>
bool fits(const Role<Arguments>& role, const Arguments& arguments, int threads, const std::string& name,
          const Config& config) {
  for (const Kernel<Arguments>& kernel : role.kernels()) {
    if (kernel.name != name) continue;
    if (!kernel.unsupported(arguments).empty()) return false;
    const Configs configs = kernel.configs(arguments);
    const bool is_listed = std::find(configs.begin(), configs.end(), config) != configs.end();
    if (!is_listed && config != role.prior_config(kernel, arguments)) return false;
    try {
      kernel.plan(arguments, config, threads);
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }
  return false;
}

/// A choice, and where it is from: "forced", "given", "tuned", "table", "nearest", "predicted", "prior"; with the time
/// that was measured or predicted for it, or 0.
template <class Arguments>
struct Found {
  Choice<Arguments> choice;
  const char* why = "";
  double microseconds = 0;
};

/// The prior's, or what a ranker predicts to be clearly faster: model/ranker.h.
template <class Arguments>
Found<Arguments> predicted(const Role<Arguments>& role, const Arguments& arguments, int threads) {
  const Choice<Arguments> prior = role.prior(arguments);
  const std::shared_ptr<const RoleTrees> trees = prior ? ranking_of(role.name, input_of(arguments).device) : nullptr;
  if (!trees || trees->margin >= 1) return {prior, "prior"};
  Predictions predictions(*trees, problem_text(arguments, threads), machine_of(input_of(arguments).device));
  const std::optional<double> of_prior = predictions.microseconds(prior.kernel->name, prior.config);
  if (!of_prior) return {prior, "prior"};
  Found<Arguments> best{prior, "prior"};
  double least = *of_prior * (1 - trees->margin);
  for (const Kernel<Arguments>& kernel : role.kernels()) {
    if (!trees->kernels.contains(kernel.name) || !kernel.unsupported(arguments).empty()) continue;
    for (const Config& config : kernel.configs(arguments)) {
      const double microseconds = predictions.microseconds(kernel.name, config).value_or(least);
      if (microseconds >= least) continue;
      try {
        kernel.plan(arguments, config, threads);
      } catch (const Unsupported&) {
        continue;
      }
      least = microseconds;
      best = {{&kernel, config}, "predicted", microseconds};
    }
  }
  return best;
}

/// What a call asks for by itself, as force() has it; none where it does not fit. Throws InvalidArgument, listing what
/// there is, for a kernel or a word that there is not.
template <class Arguments>
std::optional<Choice<Arguments>> given_choice(const Role<Arguments>& role, const Arguments& arguments, int threads,
                                              const std::string& given) {
  const Forced wanted = read_choice("config", role.name, given);
  const Kernel<Arguments>& kernel = kernel_named(role.kernels(), wanted.kernel);
  if (!kernel.unsupported(arguments).empty()) return {};
  const Config config = wanted.config ? *wanted.config : fitting_config(role, kernel, arguments, threads);
  if (!fits(role, arguments, threads, wanted.kernel, config)) return {};
  return Choice<Arguments>{&kernel, config};
}

/// What is forced, or else what is given with the call, if it fits, or else what was measured to be the fastest, or
/// else what is predicted to be, or else the prior's; no kernel where none can. Throws Unsupported, listing every
/// kernel with its reason, where the forced one cannot.
template <class Arguments>
Found<Arguments> find(const Role<Arguments>& role, const Arguments& arguments, int threads,
                      const std::string& given = {}) {
  if (const std::optional<Forced> wanted = forced(role.name)) {
    const CompilingAllowed compiling;
    const Kernel<Arguments>& kernel = kernel_named(role.kernels(), wanted->kernel);
    const std::string reason = kernel.unsupported(arguments);
    if (!reason.empty()) {
      throw Unsupported(std::string(role.name) + ": " + kernel.name +
                        " is forced, but cannot run these arguments: " + reason + reasons(role, arguments));
    }
    return {{&kernel, wanted->config ? *wanted->config : fitting_config(role, kernel, arguments, threads)}, "forced"};
  }
  if (!given.empty()) {
    const CompilingAllowed compiling;
    if (const auto choice = given_choice(role, arguments, threads, given)) return {*choice, "given"};
  }
  if (knows_choices(role.name, input_of(arguments).device)) {
    const auto known = known_choice(role.name, input_of(arguments).device, problem_text(arguments, threads),
                                    [&](const std::string& kernel, const Config& config) {
                                      return fits(role, arguments, threads, kernel, config);
                                    });
    if (known) return {{&kernel_named(role.kernels(), known->kernel), known->config}, known->why, known->microseconds};
  }
  return predicted(role, arguments, threads);
}

/// What can run the arguments, of kernels that a ranker knows, in the order of the predicted times; empty: there is
/// none.
template <class Arguments>
std::vector<Choice<Arguments>> ranked(const Role<Arguments>& role, const Arguments& arguments, int threads) {
  std::vector<Choice<Arguments>> choices;
  const std::shared_ptr<const RoleTrees> trees = ranking_of(role.name, input_of(arguments).device);
  if (!trees) return choices;
  Predictions predictions(*trees, problem_text(arguments, threads), machine_of(input_of(arguments).device));
  std::vector<std::pair<double, Choice<Arguments>>> timed;
  for (const Kernel<Arguments>& kernel : role.kernels()) {
    if (!trees->kernels.contains(kernel.name) || !kernel.unsupported(arguments).empty()) continue;
    for (const Config& config : kernel.configs(arguments)) {
      timed.push_back({*predictions.microseconds(kernel.name, config), {&kernel, config}});
    }
  }
  std::stable_sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [microseconds, choice] : timed) choices.push_back(choice);
  return choices;
}

/// A recorded problem of a role.
template <class Arguments>
class ProblemOf : public Problem {
 public:
  ProblemOf(const Role<Arguments>& role, const Arguments& arguments, int threads)
      : Problem(role.name, problem_text(arguments, threads), result_text(arguments, threads),
                input_of(arguments).device, threads),
        role_(role),
        arguments_(arguments) {}

  Taken taken() const override {
    const Found<Arguments> found = find(role_, arguments_, threads);
    return {text_of(found.choice), found.why, found.microseconds};
  }

  std::vector<std::string> candidates(std::size_t most) const override {
    std::vector<std::string> list;
    const auto offer = [&](const Choice<Arguments>& choice) {
      if (!choice || list.size() >= most) return;
      const std::string text = text_of(choice);
      if (std::find(list.begin(), list.end(), text) != list.end()) return;
      const CompilingAllowed compiling(candidates_are_compiled());
      try {
        plan_within(choice);
        list.push_back(text);
      } catch (const Unsupported&) {  // does not fit
      }
    };
    offer(find(role_, arguments_, threads).choice);
    offer(role_.prior(arguments_));
    std::vector<Able> able = able_kernels();
    // The next config of each kernel that a ranker knows, or of each other one; false: there are none left.
    const auto offer_next = [&](bool is_ranked) {
      bool any = false;
      for (Able& one : able) {
        if (one.is_ranked != is_ranked || one.next > one.places.size() || list.size() >= most) continue;
        const std::size_t next = one.next++;
        const bool is_first = next == 0;
        offer({one.kernel,
               is_first ? fitting_config(role_, *one.kernel, arguments_, threads) : one.configs[one.places[next - 1]]});
        any = true;
      }
      return any;
    };
    const std::vector<Choice<Arguments>> ranked_ = ranked(role_, arguments_, threads);
    for (std::size_t i = 0; i < ranked_.size() && list.size() < most; ++i) {
      offer(ranked_[i]);
      if (i % kRankedInARow == kRankedInARow - 1) offer_next(false);
    }
    for (bool any = true; any && list.size() < most;) {
      any = offer_next(false);
      any = offer_next(true) || any;
    }
    return list;
  }

  std::vector<std::string> choices() const override {
    const CompilingAllowed compiling;
    std::vector<std::string> list;
    for (const Kernel<Arguments>& kernel : role_.kernels()) {
      if (!kernel.unsupported(arguments_).empty()) continue;
      for (const Config& config : kernel.configs(arguments_)) list.push_back(text_of({&kernel, config}));
    }
    return list;
  }

  std::string source(const std::string& choice) const override {
    const Choice<Arguments> chosen = choice_of(choice);
    if (chosen.kernel->source == nullptr) {
      throw Unsupported(std::string(chosen.kernel->name) + " is compiled with the library: its source is in ops/");
    }
    return chosen.kernel->source(arguments_, chosen.config);
  }

  std::vector<Buffer> buffers() const override { return buffers_of(arguments_); }

  Trial plan(const std::string& choice) const override {
    const CompilingAllowed compiling;
    Plan<Arguments> plan = plan_within(choice_of(choice));
    return {
        plan.workspace_bytes,
        [arguments = arguments_,
         run = std::move(plan.unchecked_run)](std::span<void* const> buffers) -> std::function<void(const Execution&)> {
          return [bound = with_buffers(arguments, buffers), run](const Execution& execution) { run(bound, execution); };
        }};
  }

 private:
  /// What is predicted says nothing of kernels that no ranker knows, such as generated ones: they have their turns.
  static constexpr std::size_t kRankedInARow = 3;

  struct Able {
    const Kernel<Arguments>* kernel;
    bool is_ranked;
    Configs configs;
    std::vector<std::size_t> places;
    std::size_t next = 0;  ///< 0: what it would be taken with
  };
  std::vector<Able> able_kernels() const {
    const CompilingAllowed compiling(candidates_are_compiled());
    const std::shared_ptr<const RoleTrees> trees = ranking_of(role_.name, input_of(arguments_).device);
    std::vector<Able> able;
    for (const Kernel<Arguments>& kernel : role_.kernels()) {
      if (!kernel.unsupported(arguments_).empty()) continue;
      Configs configs = kernel.configs(arguments_);
      std::vector<std::size_t> places = spread_places(configs.size());
      able.push_back({&kernel, trees && trees->kernels.contains(kernel.name), std::move(configs), std::move(places)});
    }
    return able;
  }

  Choice<Arguments> choice_of(const std::string& text) const {
    const ChoiceWords words = words_of(text);
    const Kernel<Arguments>& kernel = kernel_named(role_.kernels(), words.kernel);
    return {&kernel, words.parsed_config()};
  }
  static std::string text_of(const Choice<Arguments>& choice) {
    return choice ? Chosen{"", choice.kernel->name, choice.config, ""}.choice() : "";
  }
  Plan<Arguments> plan_within(const Choice<Arguments>& choice) const {
    const PlanningWithin within(depth + 1);
    return choice.kernel->plan(arguments_, choice.config, threads);
  }

  const Role<Arguments>& role_;
  const Arguments arguments_;
};

/// The plan of what is chosen, which says so when it runs. `given`: as find() has it. Throws Unsupported, listing every
/// kernel with its reason, where there is none.
template <class Arguments>
Plan<Arguments> plan_chosen(const Role<Arguments>& role, const Arguments& arguments, int threads,
                            const std::string& given = {}) {
  const auto [choice, why, microseconds] = find(role, arguments, threads, given);
  const bool is_wanted = why == std::string_view("forced") || why == std::string_view("given");
  if (!choice) {
    throw Unsupported(std::string(role.name) +
                      ": no implementation can run these arguments:" + reasons(role, arguments));
  }
  std::shared_ptr<Problem> problem;
  // Whatever was measured of what is given with a call, it is not taken.
  if (is_recording() && why != std::string_view("given") && can_be_repeated(arguments)) {
    problem = record(role.name, problem_text(arguments, threads), input_of(arguments).device,
                     [&] { return std::make_shared<ProblemOf<Arguments>>(role, arguments, threads); });
  }
  const PlanningWithin within;
  const CompilingAllowed compiling(is_wanted);
  Plan<Arguments> plan = choice.kernel->plan(arguments, choice.config, threads);
  plan.unchecked_run = [chosen = Chosen{role.name, choice.kernel->name, choice.config, why, microseconds}, problem,
                        run = std::move(plan.unchecked_run)](const Arguments& like, const Execution& execution) {
    if (problem) ++problem->calls;
    note(chosen, input_of(like));
    run(like, execution);
  };
  return plan;
}

/// Every kernel: the one that is taken with its config, and why the others cannot, or that they could.
template <class Arguments>
std::vector<Candidate> candidates(const Role<Arguments>& role, const Arguments& arguments, int threads,
                                  const std::string& given = {}) {
  const auto [choice, why, microseconds] = find(role, arguments, threads, given);
  const std::string name = role.name;
  std::vector<Candidate> list;
  for (const Kernel<Arguments>& kernel : role.kernels()) {
    Candidate candidate{kernel.name, kernel.unsupported(arguments), &kernel == choice.kernel};
    candidate.direction = name.substr(name.find('.') + 1);
    if (candidate.taken) {
      candidate.config = printed(choice.config);
      candidate.why = Chosen{role.name, kernel.name, choice.config, why, microseconds}.reason();
    }
    list.push_back(std::move(candidate));
  }
  return list;
}

}  // namespace fusedsc::tuning
