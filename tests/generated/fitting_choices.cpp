/// fitting_choices MULTIPROCESSORS: of each line "role<TAB>problem<TAB>kernel/config" of the standard input, whether
/// there is such a kernel that fits, on an NVIDIA GPU with so many multiprocessors: "1", or "0" and why not. Of
/// "prior" in place of a choice: "1" and what the prior takes. For benchmarks/fit.py, which makes tables of rows that
/// were measured with kernels of some time ago.
#include <iostream>
#include <string>

#include "host_executor/fitting.h"

int main(int count, char** arguments) {
  const int multiprocessors = count == 2 ? std::atoi(arguments[1]) : 0;
  if (multiprocessors < 1) {
    std::cerr << "fitting_choices MULTIPROCESSORS\n";
    return 2;
  }
  fusedsc::Fitting fitting(multiprocessors);
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t first = line.find('\t'), second = line.find('\t', first + 1);
    if (second == std::string::npos) {
      std::cerr << "fitting_choices: it is no line of three parts: " + line + '\n';
      return 1;
    }
    const std::string role = line.substr(0, first), problem = line.substr(first + 1, second - first - 1),
                      choice = line.substr(second + 1);
    if (choice == "prior") {
      const std::string prior = fitting.prior(role, problem);
      std::cout << (prior.empty() ? "0 no operator meets such a problem" : "1 " + prior) << '\n';
    } else {
      std::string why = fitting.why_not(role, problem, choice);
      why = why.substr(0, why.find('\n'));
      std::cout << (why.empty() ? "1" : "0 " + why) << '\n';
    }
  }
  return 0;
}
