/// Sums and moments kept per slice, added in the slices' order and in double: the same result whichever thread ran
/// which slice.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fusedsc {

inline constexpr std::int64_t kSumBlock = 64;  ///< channels added side by side

/// out[c] = sum over slices of sums[slice*pitch + c].
template <class T>
void add_slices(const T* sums, std::int64_t slices, std::int64_t pitch, std::int64_t channels, T* out) {
  for (std::int64_t first = 0; first < channels; first += kSumBlock) {
    const std::int64_t count = std::min(kSumBlock, channels - first);
    double total[kSumBlock] = {};
    for (std::int64_t s = 0; s < slices; ++s) {
      for (std::int64_t c = 0; c < count; ++c) total[c] += static_cast<double>(sums[s * pitch + first + c]);
    }
    for (std::int64_t c = 0; c < count; ++c) out[first + c] = static_cast<T>(total[c]);
  }
}

/// Chan's formula over the slices' means and sums of squared deviations, [slice][pitch] each; slice s has seen
/// count_of(s) elements.
template <class T, class CountOf>
void merge_slices(const T* mean, const T* m2, std::int64_t slices, std::int64_t pitch, std::int64_t channels,
                  const CountOf& count_of, T* mean_out, T* m2_out) {
  for (std::int64_t first = 0; first < channels; first += kSumBlock) {
    const std::int64_t block = std::min(kSumBlock, channels - first);
    double merged_mean[kSumBlock] = {}, merged_m2[kSumBlock] = {};
    double present = 0;
    for (std::int64_t s = 0; s < slices; ++s) {
      const auto added = static_cast<double>(count_of(s));
      if (added == 0) continue;
      const double mean_weight = added / (present + added), m2_weight = present * mean_weight;
      for (std::int64_t c = 0; c < block; ++c) {
        const double delta = static_cast<double>(mean[s * pitch + first + c]) - merged_mean[c];
        merged_mean[c] += delta * mean_weight;
        merged_m2[c] += static_cast<double>(m2[s * pitch + first + c]) + delta * delta * m2_weight;
      }
      present += added;
    }
    for (std::int64_t c = 0; c < block; ++c) {
      mean_out[first + c] = static_cast<T>(merged_mean[c]);
      m2_out[first + c] = static_cast<T>(merged_m2[c]);
    }
  }
}

}  // namespace fusedsc
