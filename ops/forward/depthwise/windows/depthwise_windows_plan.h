/// From a depthwise problem with any window to tiles in shared memory: pure functions of the problem and of the GPU's
/// size.
#pragma once

#include <functional>
#include <vector>

#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

/// axis: 0 for rows, 1 for columns.
WindowAxis window_axis(const Window& window, int axis, std::int64_t padding, std::int64_t input, std::int64_t output);

/// What tiles are cut from.
struct WindowGrid {
  std::int64_t batch, channels;  ///< channels that threads have
  int rows, columns;             ///< of each class
  int row_phases;
  bool channels_fastest;
  bool channels_join;  ///< vectors of kWindowVector channels can be loaded
  int most_blocks;     ///< of a multiprocessor at a time, as registers allow
};

/// A way to cut them, and what it takes.
struct WindowCut {
  int channel_lanes = 1, item_lanes = 1;
  int rows = 1, columns = kWindowColumns;  ///< of a tile, of each class
  int vector = 1;                          ///< channels that are loaded at once

  // Worked out by the kernel's own part of the plan.
  int items = 1;          ///< of a channel
  WindowPlaces places;    ///< as they are brought
  int row_parts = 1;      ///< of these
  int blocks = 1;         ///< that each do a part of a tile's work
  std::size_t bytes = 0;  ///< of shared memory
  double item_cost = 1;   ///< instructions of a thread for an item
  double extra_cost = 0;  ///< and for anything else of a tile
};

/// A cut that fits shared memory, and what it promises to take.
struct WindowCandidate {
  WindowCut cut;
  double time;
  std::int64_t tiles;
};

/// All that are worth considering; none if not even the smallest fits. `describe` works a cut out.
std::vector<WindowCandidate> window_candidates(const WindowGrid& grid, const std::function<void(WindowCut&)>& describe);

/// Channels of a block, rows and columns of a tile: of each candidate; of the one that promises to be fastest.
tuning::Configs window_configs(const std::vector<WindowCandidate>& candidates);
tuning::Config window_prior_config(const std::vector<WindowCandidate>& candidates);
/// Throws Unsupported if there is none.
const WindowCandidate& window_candidate(const char* name, const std::vector<WindowCandidate>& candidates,
                                        const tuning::Config& config);

struct WindowPlan {
  ItemWork work;
  WindowTile tile;
};

/// `resident`: blocks that run at the same time.
WindowPlan plan_windows(const WindowGrid& grid, int column_classes, const WindowCandidate& candidate, int resident);

/// Whether the kernels load vectors of channels of them.
bool windows_join(std::initializer_list<ConstTensorView> tensors);

/// Places of `segments` classes of columns, for reads of whole runs up to `reach` beyond a tile's columns.
WindowPlaces window_places(int channels, int row_parts, int rows, int segments, int columns, int reach);
/// Of `columns` columns, a multiple of kWindowColumns.
WindowSums window_sums(int rows, int columns);
WindowWeights window_weights(const WindowAxis& rows, const WindowAxis& columns, int channels);

/// Instructions of a thread for the taps of an item.
double window_taps_cost(const WindowAxis& rows, const WindowAxis& columns);

}  // namespace fusedsc::gpu
