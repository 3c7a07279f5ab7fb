/// Lists of compressed maps (forward/sparse.h): read as those of positions, and written.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_SPARSE_CPU_COMPRESSED_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_SPARSE_CPU_COMPRESSED_MAP_INL_H_
#undef FUSEDSC_FORWARD_SPARSE_CPU_COMPRESSED_MAP_INL_H_
#else
#define FUSEDSC_FORWARD_SPARSE_CPU_COMPRESSED_MAP_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "fusedsc/forward/sparse.h"
#include "fusedsc/forward/sparse/cpu/compaction-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Channels of a group that are read at a position: [first, end) of the map, the group's own begin at `group`.
struct ListChannels {
  std::int64_t group, first, end;
};

/// What a position's lists, which begin at `from`, have of some channels: values, and the offsets of their rows of the
/// weight, `step` from channel to channel. How many; whole vectors are stored. Whatever the bytes of places and counts
/// are, not more is read than lists have, and there are no more values and no other rows than those of the channels.
template <class T, class Storage>
std::int64_t read_lists(const Storage* from, const std::uint8_t* places, const std::uint8_t* counts,
                        const ListChannels& channels, std::int64_t step, T* values, hwy::MakeUnsigned<T>* offsets) {
  using Offset = hwy::MakeUnsigned<T>;
  std::int64_t count = 0;
  for (std::int64_t channel = channels.first; channel < channels.end;) {
    const std::int64_t list = channel / kMapList * kMapList, next = std::min(list + kMapList, channels.end);
    const std::int64_t low = channel - list, most = next - channel;
    std::uint32_t word;
    std::memcpy(&word, counts + list / kMapRun, sizeof(word));
    const std::uint64_t sums = std::uint64_t{word * 0x01010101u} << 8;  // of the runs before each, a byte each
    const auto sum = [sums](std::int64_t runs) { return static_cast<std::int64_t>(sums >> (8 * runs) & 0xff); };
    const std::int64_t begin = std::min(sum(low / kMapRun), kMapList);
    const std::int64_t end =
        std::clamp(sum((low + most + kMapRun - 1) / kMapRun), begin, std::min(begin + most, kMapList));
    const std::int64_t row = (channel - channels.group) * step;
    std::int64_t i = begin;
    if constexpr (sizeof(T) == 4) {
      const Tag<T> d;
      const hn::RebindToUnsigned<Tag<T>> d_offset;
      const hn::Rebind<std::uint8_t, Tag<T>> d_byte;
      const auto before = hn::Set(d_offset, static_cast<Offset>(low));
      const auto last = hn::Set(d_offset, static_cast<Offset>(most - 1));
      const auto by = hn::Set(d_offset, static_cast<Offset>(step)), rows = hn::Set(d_offset, static_cast<Offset>(row));
      // Once at least: mostly that is enough, and how many there are is hard to foresee.
      for (; i + kLanes<T> <= kMapList; i += kLanes<T>) {
        const auto place = hn::PromoteTo(d_offset, hn::LoadU(d_byte, places + list + i));
        hn::StoreU(load_as<T>(from + list + i), d, values + count + i - begin);
        hn::StoreU(hn::Add(hn::Mul(hn::Min(hn::Sub(place, before), last), by), rows), d_offset,
                   offsets + count + i - begin);
        if (i + kLanes<T> >= end) {
          i = end;
          break;
        }
      }
    }
    for (; i < end; ++i) {
      const auto place = static_cast<std::uint64_t>(places[list + i] - low);
      store_partial<T>(load_partial<T>(from + list + i, 1), values + count + i - begin, 1);
      offsets[count + i - begin] =
          static_cast<Offset>(row + static_cast<std::int64_t>(std::min<std::uint64_t>(place, most - 1)) * step);
    }
    count += end - begin;
    channel = next;
  }
  return count;
}

/// What x, a compressed map, has of some channels at a position, `place` elements from its beginning.
template <class T>
std::int64_t read_compressed(const SparseArguments& a, std::int64_t place, const ListChannels& channels,
                             std::int64_t step, T* values, hwy::MakeUnsigned<T>* offsets) {
  const std::uint8_t* places = static_cast<const std::uint8_t*>(a.x_channels.data) + place;
  const std::uint8_t* counts = static_cast<const std::uint8_t*>(a.x_counts.data) + place / kMapRun;
  std::int64_t count = 0;
  with_storage<T>(a.x.dtype, [&]<class Storage>() {
    const Storage* from = static_cast<const Storage*>(a.x.data) + place;
    count = read_lists<T>(from, places, counts, channels, step, values, offsets);
  });
  return count;
}

/// The numbers of ones in each byte.
inline std::uint32_t ones_of_bytes(std::uint32_t bits) {
  bits -= bits >> 1 & 0x55555555;
  bits = (bits & 0x33333333) + (bits >> 2 & 0x33333333);
  return (bits + (bits >> 4)) & 0x0f0f0f0f;
}

/// Values of kMapList channels as a list, in the type that is stored: what becomes zero there is left out.
template <class T, class Storage>
void write_list(const T* from, Storage* values, std::uint8_t* channels, std::uint8_t* counts) {
  const Tag<T> d;
  for (std::int64_t i = 0; i < kMapList; i += kLanes<T>) store_as<T>(hn::Zero(d), values + i);
  std::memset(channels, 0, kMapList);
  std::uint32_t bits = 0;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < kMapList; i += kLanes<T>) {
    auto value = load_as<T>(from + i);
    if constexpr (!std::is_same_v<T, Storage>) {
      Storage rounded[kLanes<T>];
      store_as<T>(value, rounded);
      value = load_as<T>(rounded);
    }
    const Compaction<T> compaction(hn::Not(hn::Eq(value, hn::Zero(d))));  // Ne is false of NaN
    const auto is_given = hn::FirstN(d, static_cast<std::size_t>(compaction.count()));
    store_as<T>(hn::IfThenElseZero(is_given, compaction.of(value)), values + count);
    if constexpr (sizeof(T) == 4) {
      const hn::RebindToUnsigned<Tag<T>> d_place;
      const hn::Rebind<std::uint8_t, Tag<T>> d_byte;
      const auto place = hn::IfThenElseZero(hn::RebindMask(d_place, is_given),
                                            compaction.of(hn::Iota(d_place, static_cast<std::uint32_t>(i))));
      hn::StoreU(hn::DemoteTo(d_byte, hn::BitCast(hn::RebindToSigned<decltype(d_place)>(), place)), d_byte,
                 channels + count);
    } else {
      std::int64_t at = count;
      for (std::uint32_t lanes = compaction.bits(); lanes != 0; lanes &= lanes - 1) {
        channels[at++] = static_cast<std::uint8_t>(i + std::countr_zero(lanes));
      }
    }
    bits |= compaction.bits() << i;
    count += compaction.count();
  }
  const std::uint32_t of_runs = ones_of_bytes(bits);
  std::memcpy(counts, &of_runs, sizeof(of_runs));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
