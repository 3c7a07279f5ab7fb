#include "fusedsc/fused/conv_bn_act/conv_bn_act_plan.h"

#include <algorithm>
#include <array>
#include <limits>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_backward_kernel.h"

namespace fusedsc::gpu {
namespace {

/// A row of a patch: a run of elements that begins in the first word, or in its second half.
struct PatchRow {
  std::int64_t elements, lead, words;

  explicit PatchRow(const ConvProblem& problem)
      : elements(problem.window.kernel[1] * problem.x.sizes[1]),
        lead(problem.window.padding.left * problem.x.sizes[1] % problem.word_elements()),
        words(divide_up(lead + elements, problem.word_elements())) {}
};

/// Calls place(slot, row of the window, word of the row). What four lanes read at once is neighbours as far as it goes,
/// so that it lies on different banks; words that are only in part the patch's come last.
template <class Place>
int place_words(const ConvProblem& problem, const Place& place) {
  const PatchRow patch_row(problem);
  const std::int64_t words = patch_row.words, rows = problem.window.kernel[0];
  const std::int64_t begin = patch_row.lead, end = begin + (words - begin) / 4 * 4;
  int slot = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t word = begin; word < end; ++word) place(slot++, row, word);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t word = 0; word < words; ++word) {
      if (word < begin || word >= end) place(slot++, row, word);
    }
  }
  return slot;
}

/// Where the run of a row of x begins in shared memory, in words: behind zeros that reach as far as windows do.
std::int64_t gap_words(const ConvProblem& problem) {
  const std::int64_t elements = problem.window.padding.left * problem.x.sizes[1] + PatchRow(problem).lead;
  return divide_up(elements, 4 * problem.word_elements()) * 4;
}

constexpr int kMostStages = 3;

bool begins_at_runs(const ConstTensorView& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0; }

}  // namespace

int patch_words(const ConvProblem& problem) {
  const std::int64_t words = PatchRow(problem).words * problem.window.kernel[0];
  const int most = problem.word_elements() == 2 ? 6 : kMostPatchWords;
  if (words + 1 > 4 * most) return kMostPatchWords + 1;
  return problem.word_elements() == 2 ? static_cast<int>(divide_up(words + 1, 8)) * 2 : most;
}

std::string why_not_patches(const ConvProblem& problem) {
  const ConstTensorView &x = problem.x, &output = problem.output;
  const std::int64_t channels = x.sizes[1], filters = output.sizes[1];
  const std::string elsewhere = needs_device(Device::gpu, x.device);
  if (!elsewhere.empty()) return elsewhere;
  if (!kWaveProducts) return "this GPU has no products of matrices by 32 threads";
#ifdef FUSEDSC_HOST_EXECUTOR
  if (wave_size() != 32) return "waves have 64 threads";
#endif
  if (x.dtype == DataType::float64) return "elements are float64; it takes those of 16 bits and float32";
  if (x.dtype == DataType::float32 && !problem.allow_tf32) return "TensorFloat-32 is not allowed";
  if (problem.window.dilation != std::array<std::int64_t, 2>{1, 1}) return "the window is dilated";
  if (patch_words(problem) > kMostPatchWords) {
    return "a window has " + std::to_string(channels * problem.window.kernel[0] * problem.window.kernel[1]) +
           " elements; it takes up to about 40, of float32 up to 31";
  }
  if (filters % 8 != 0 || filters > 64) {
    return std::to_string(filters) + " output channels; it takes multiples of 8 up to 64";
  }
  if (x.strides[1] != 1 || x.strides[3] != channels || !channels_join(8, {output})) {
    return "the tensors are not channels_last, with rows that begin at multiples of 16 bytes";
  }
  const std::int64_t run = 4 * problem.word_elements();
  if (x.sizes[3] * channels % run != 0 || (x.sizes[2] > 1 && x.strides[2] % run != 0) ||
      (x.sizes[0] > 1 && x.strides[0] % run != 0) || !begins_at_runs(x)) {
    return "rows of x are no multiples of 16 bytes";
  }
  if (problem.window.stride[1] * channels % problem.word_elements() != 0)
    return "windows begin at odd elements of x's rows";
  const std::string too_large = too_large_for_gpu(x.sizes, output.sizes, problem.window);
  if (!too_large.empty()) return too_large;
  ConvShape shape = conv_shape(problem, 1, 16);
  const std::size_t bytes = conv_backward_memory(problem, shape, kMostStages).bytes;
  if (bytes > shared_memory_limit()) return "rows of x are too long for shared memory";
  return "";
}

int known_step(const ConvProblem& problem) {
  const PatchRow patch_row(problem);
  const std::int64_t whole = (patch_row.words - patch_row.lead) / 4 * 4 * problem.window.kernel[0];  // first, unmasked
  const bool steps = problem.window.stride[1] * problem.x.sizes[1] == kImageStep;
  if (problem.word_elements() == 1) return steps && patch_row.words * problem.window.kernel[0] == 27 ? kImageStep : 0;
  const bool known = patch_row.words * problem.window.kernel[0] == 15 && steps && whole >= 12 &&
                     patch_row.words - patch_row.lead >= 4 &&
                     2 * (patch_row.lead + 4) - patch_row.lead <= patch_row.elements;
  return known ? kImageStep / 2 : 0;
}

void place_factors(const ConvProblem& problem, const Sizes& weight_strides, std::int32_t* elements) {
  std::fill_n(elements, 8 * kMostPatchWords, -1);
  const PatchRow patch_row(problem);
  const std::int64_t channels = problem.x.sizes[1];
  place_words(problem, [&](int slot, std::int64_t row, std::int64_t word) {
    for (int part = 0; part < problem.word_elements(); ++part) {
      const std::int64_t i = problem.word_elements() * word + part - patch_row.lead;
      if (i < 0 || i >= patch_row.elements) continue;
      elements[problem.word_elements() * slot + part] = static_cast<std::int32_t>(
          row * weight_strides[2] + i / channels * weight_strides[3] + i % channels * weight_strides[1]);
    }
  });
}

ConvShape conv_shape(const ConvProblem& problem, int tile_rows, int group_channels) {
  const Window& window = problem.window;
  const std::int64_t channels = problem.x.sizes[1], height = problem.output.sizes[2], width = problem.output.sizes[3];
  ConvShape shape;
  shape.x = problem.x;
  shape.weight = problem.weight;
  shape.channels = static_cast<int>(problem.output.sizes[1]);
  shape.groups = static_cast<int>(divide_up(shape.channels, group_channels));
  shape.group_warps = kConvWarps / shape.groups;
  shape.by_group_warps = Divisor(static_cast<std::uint32_t>(shape.group_warps));
  shape.input_height = static_cast<int>(problem.x.sizes[2]);
  shape.output_height = static_cast<int>(height);
  shape.output_width = static_cast<int>(width);
  shape.padding_top = static_cast<int>(window.padding.top);
  shape.stride_height = static_cast<int>(window.stride[0]);
  shape.tile_rows = tile_rows;
  shape.input_rows = static_cast<int>((tile_rows - 1) * window.stride[0] + window.kernel[0]);
  shape.row_tiles = static_cast<int>(divide_up(width, 16));
  const std::int64_t word_elements = problem.word_elements();
  shape.row_runs = static_cast<int>(problem.x.sizes[3] * channels / (4 * word_elements));

  const PatchRow patch_row(problem);
  const std::int64_t gap = gap_words(problem);
  shape.gap = static_cast<int>(gap);
  shape.position_step = static_cast<int>(window.stride[1] * channels / word_elements);
  shape.first_word = static_cast<int>(gap - (window.padding.left * channels + patch_row.lead) / word_elements);
  // Zeros as far as the last window reaches; then 4 words beyond a multiple of 32, which parts the rows' banks.
  const std::int64_t reach = shape.first_word + (width - 1) * shape.position_step + patch_row.words;
  const std::int64_t row_words = std::max(gap + 4 * shape.row_runs, reach);
  shape.pitch = static_cast<int>(divide_up(row_words - 4, 32) * 32 + 4);
  // The last product of the last row reads on to its 16th position.
  const std::int64_t beyond = (16 * shape.row_tiles - width) * shape.position_step;
  shape.stage_words = static_cast<int>(divide_up(shape.input_rows * shape.pitch + beyond, 4) * 4);

  shape.row_words = shape.stride_height * shape.pitch;
  shape.turn_rows = shape.group_warps / std::max(shape.row_tiles, 1);
  shape.turn_products = shape.group_warps % std::max(shape.row_tiles, 1);
  shape.product_words = 16 * shape.position_step;
  shape.turn_words = shape.turn_rows * shape.row_words + shape.turn_products * shape.product_words;
  shape.wrap_words = shape.row_words - shape.row_tiles * shape.product_words;
  shape.partial_product = width % 16 == 0 ? -1 : shape.row_tiles - 1;
  shape.partial_columns = static_cast<int>(width % 16);

  const std::int64_t image_tiles = divide_up(height, tile_rows);
  shape.tiles = static_cast<std::uint32_t>(problem.output.sizes[0] * image_tiles);
  shape.tiles_of_image = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(image_tiles, 1)));

  std::fill_n(shape.patch.places, 4 * kMostPatchWords, 0);
  std::fill_n(shape.patch.masks, 4 * kMostPatchWords, 0u);
  place_factors(problem, problem.weight.strides, shape.patch.elements);
  place_words(problem, [&](int slot, std::int64_t row, std::int64_t word) {
    shape.patch.places[slot] = static_cast<std::int32_t>(row * shape.pitch + word);
    const std::int64_t first = word_elements * word - patch_row.lead;
    const std::uint32_t low = first >= 0 ? 0xffffu : 0u,
                        high = first + word_elements - 1 < patch_row.elements ? 0xffff0000u : 0u;
    shape.patch.masks[slot] = low | high;
  });
  return shape;
}

std::size_t conv_forward_bytes(const ConvShape& shape, int stages, int group_channels) {
  const std::size_t moments = sizeof(float) * 3 * kConvWarps * static_cast<std::size_t>(group_channels);
  return std::max(4 * static_cast<std::size_t>(stages) * static_cast<std::size_t>(shape.stage_words), moments);
}

ConvBackwardMemory conv_backward_memory(const ConvProblem& problem, ConvShape& shape, int stages) {
  ConvBackwardMemory memory;
  memory.grad_runs = shape.channels / (4 * problem.word_elements());
  memory.grad_pitch = 4 * (memory.grad_runs | 1);
  memory.grad_begin = shape.stage_words;
  const int positions = shape.tile_rows * shape.row_tiles * 16;
  // Products of 16 channels read on where there are fewer.
  shape.stage_words += positions * memory.grad_pitch + 8 / problem.word_elements();
  const int sums = conv_partials(patch_taps(problem), 16 * shape.groups);
  memory.bytes = sizeof(std::uint32_t) * static_cast<std::size_t>(std::max(stages * shape.stage_words, sums));
  return memory;
}

}  // namespace fusedsc::gpu
