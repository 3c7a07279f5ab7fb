#include "fusedsc/tuning/generator/extents.h"

#include "fusedsc/common/divide_up.h"

namespace fusedsc::tuning {

std::vector<int> tile_sizes(std::int64_t extent, int most, Edges edges) {
  std::vector<int> sizes;
  for (int size = 1; size <= most; ++size) {
    const bool is_factor = size == 1 || (size <= extent && extent % size == 0);
    const bool is_power = (size & (size - 1)) == 0;
    const std::int64_t beyond = divide_up(extent, size) * size - extent;
    if (is_factor || (edges == Edges::masked && is_power && 4 * beyond <= extent)) sizes.push_back(size);
  }
  return sizes;
}

}  // namespace fusedsc::tuning
