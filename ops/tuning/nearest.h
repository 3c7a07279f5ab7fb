/// A choice that was measured for the same layer and another number of images, or on a GPU for the other type of 16
/// bits: taken where there is none for this one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/store/entry.h"

namespace fusedsc::tuning {

/// A problem's text (problem_text.h) without the number of images.
struct ForAnyBatch {
  std::string text;
  std::int64_t batch = 0;
};

/// Nothing where the text does not begin with x, or x has no image.
std::optional<ForAnyBatch> for_any_batch(std::string_view problem);

/// A problem's text in which both types of 16 bits are one, if it is a GPU's: there they move the same bytes, and one
/// speed of instructions takes both. A CPU converts them in different ways.
std::string for_any_16_bits(std::string_view problem);

/// Entries of one role, by what they are for.
class Nearest {
 public:
  /// How many times as many images may have been measured, or as few: beyond that another kernel may well be faster.
  static constexpr std::int64_t kMostTimes = 2;

  void add(Entry entry);
  /// Of those that may stand in for the problem: the nearest number of images first, of two at the same distance the
  /// larger one; of the same number the problem's own type first, then what was added last.
  std::vector<const Entry*> of(std::string_view problem) const;

 private:
  std::map<std::string, std::multimap<std::int64_t, Entry>, std::less<>>
      entries_;  ///< by text of any batch and type, by batch
};

}  // namespace fusedsc::tuning
