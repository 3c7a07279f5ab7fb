/// How a kernel cuts its problem up, in words: what it is forced with, what `explain` prints and what a table stores.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fusedsc::tuning {

/// What there may be to choose about a kernel. Each kernel knows some of them; words_of() has their names.
enum class Knob : std::uint8_t {
  channels,        ///< of a thread, or neighbouring ones of a block
  columns,         ///< of a thread's or a warp's tile
  rows,            ///< of a thread's tile, of a tile in shared memory, or of a strip; of a matrix product's tile
  images,          ///< of a tile
  image_parts,     ///< warps with the same channels that share a tile's images out
  box,             ///< neighbouring channels of a TMA box
  runs,            ///< of 8 neighbouring channels that a block has
  box_runs,        ///< of these in a TMA box with swizzled runs; none: rows of an odd number of runs, not swizzled
  products,        ///< of 16 positions that a warp has side by side
  segments,        ///< 1: tiles are whole rows of all channels, cut into segments without regard to positions
  grain,           ///< output rows that are not divided between blocks; none: what the kernel derives from the height
  lanes,           ///< threads of a warp or block with neighbouring channels
  groups,          ///< warps of a block that share the same channels' work out; those that share k
  warps,           ///< of a block
  stages,          ///< tiles under way
  splits,          ///< blocks that share the same sums out
  cluster,         ///< blocks of a thread block cluster; 1: none; none: what the kernel derives from the problem
  strips,          ///< that an image is cut into
  tile_bytes,      ///< about so many are a tile
  whole_bytes,     ///< planes that are more together are cut into strips
  depth,           ///< values of k that come at a time
  smem_transpose,  ///< 1: blocks transpose the weight in shared memory
  // Of generated kernels: Table 1 of Liu et al. (generator/pointwise_tiling.h).
  wave_w,    ///< positions of a wave
  wave_c,    ///< output channels of a wave
  wave_n,    ///< waves of a block
  repeat_w,  ///< of these, side by side along positions
  repeat_c,  ///< and along channels
  block_n,   ///< blocks that shall fit a compute unit
  group_c,   ///< input channels that come at a time
  ahead,     ///< rows that are asked for ahead of their use
  // Of a CPU's kernels.
  vectors,  ///< of a matrix product's strip of columns, at most
};
inline constexpr std::size_t kKnobs = 31;

/// Plain data. A knob that is 0 is one that the kernel does not know, or that it derives itself.
struct Config {
  std::array<std::int32_t, kKnobs> values{};

  Config() = default;
  Config(std::initializer_list<std::pair<Knob, std::int64_t>> knobs) {
    for (const auto& [knob, value] : knobs) (*this)[knob] = static_cast<std::int32_t>(value);
  }
  std::int32_t& operator[](Knob knob) { return values[static_cast<std::size_t>(knob)]; }
  std::int32_t operator[](Knob knob) const { return values[static_cast<std::size_t>(knob)]; }
  bool operator==(const Config&) const = default;
};

using Configs = std::vector<Config>;

/// Configs of a kernel whose loops take any length, as a CPU's do: the prior's, then others.
class Variants {
 public:
  explicit Variants(const Config& prior) : configs_{prior} {}

  /// Unless it is there already.
  void add(const Config& config) {
    if (std::find(configs_.begin(), configs_.end(), config) == configs_.end()) configs_.push_back(config);
  }
  /// The prior's with another value of one word.
  void vary(Knob knob, std::int64_t value) {
    Config config = configs_.front();
    config[knob] = static_cast<std::int32_t>(value);
    add(config);
  }

  const Configs& configs() const { return configs_; }

 private:
  Configs configs_;
};

/// "rows=6 images=2 box=32 products=2 stages=2"; of a kernel with nothing to choose, "".
std::string printed(const Config& config);

/// The same read back, in any order. Throws InvalidArgument, naming the words there are, for anything else.
Config parsed(std::string_view text);

}  // namespace fusedsc::tuning
