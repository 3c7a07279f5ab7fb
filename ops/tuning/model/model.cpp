#include "fusedsc/tuning/model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fusedsc::tuning {
namespace {

constexpr double kLaunchUs = 2.0;

/// Numbers with their names, of which either is wanted.
class Listed {
 public:
  Listed(Features* values, std::vector<std::string>* names) : values_(values), names_(names) {}

  void add(const char* name, double value) {
    if (values_ != nullptr) values_->push_back(value);
    if (names_ != nullptr) names_->emplace_back(name);
  }
  void add_log(const char* name, double value) { add(name, std::log2(std::max(value, 1e-3))); }

 private:
  Features* values_;
  std::vector<std::string>* names_;
};

/// How often a whole number goes into another: powers of two, up to 128.
double evenness(double value) {
  double power = 1;
  while (power < 128 && value > 0 && std::fmod(value, 2 * power) == 0) power *= 2;
  return power;
}

void list_problem(Listed& list, const ProblemFacts& f, const Machine& machine) {
  list.add_log("images", f.images);
  list.add_log("channels", f.channels);
  list.add_log("outputs", f.outputs);
  list.add_log("out_width", f.out_width);
  list.add_log("positions", f.positions());
  list.add_log("positions_of_multiprocessor", f.positions() / machine.multiprocessors);
  list.add_log("area", f.out_height * f.out_width);
  list.add_log("bytes", f.bytes);
  list.add_log("products_of_byte", f.products() / std::max(f.bytes, 1.0));
  list.add_log("roofline_us", roofline_us(f, machine));
  list.add("kernel", f.kernel_height);
  list.add("stride", f.stride);
  list.add("dilation", f.dilation);
  list.add("groups", f.groups);
  list.add("window_channels", f.window_channels);
  list.add("element_bytes", f.element_bytes);
  list.add("channels_last", f.channels_last ? 1 : 0);
  list.add("prologues", (f.prologue ? 1 : 0) + (f.gradient_prologue ? 2 : 0));
  list.add("behind", (f.statistics || f.sums ? 1 : 0) + (f.epilogue ? 2 : 0) + (f.bias ? 4 : 0) +
                         (f.residual || f.added ? 8 : 0));
  list.add("gradients", (f.grad_x ? 1 : 0) + (f.grad_weight ? 2 : 0));
  list.add("even_channels", evenness(f.channels));
  list.add("even_outputs", evenness(f.outputs));
  list.add("even_area", evenness(f.out_height * f.out_width));
  list.add("even_width", evenness(f.out_width));
  list.add("threads", f.threads);
}

struct Tiled {
  const char *name, *waste;
  double size, tile;
};

double tiles_of(const Tiled& tiled) { return tiled.tile > 0 ? std::ceil(tiled.size / tiled.tile) : 0; }

void list_config(Listed& list, const ProblemFacts& f, const Config& config, const Machine& machine) {
  using enum Knob;
  const auto knob = [&](Knob which) { return static_cast<double>(config[which]); };
  // Those that kernels have for which there are trees.
  static constexpr std::pair<const char*, Knob> kNamed[] = {{"k_channels", channels},
                                                            {"k_columns", columns},
                                                            {"k_rows", rows},
                                                            {"k_images", images},
                                                            {"k_image_parts", image_parts},
                                                            {"k_box", box},
                                                            {"k_runs", runs},
                                                            {"k_box_runs", box_runs},
                                                            {"k_products", products},
                                                            {"k_segments", segments},
                                                            {"k_grain", grain},
                                                            {"k_lanes", lanes},
                                                            {"k_groups", groups},
                                                            {"k_warps", warps},
                                                            {"k_stages", stages},
                                                            {"k_splits", splits},
                                                            {"k_cluster", cluster},
                                                            {"k_strips", strips},
                                                            {"k_tile_bytes", tile_bytes},
                                                            {"k_whole_bytes", whole_bytes},
                                                            {"k_depth", depth},
                                                            {"k_smem_transpose", smem_transpose}};
  for (const auto& [name, which] : kNamed) list.add(name, knob(which));

  // What a knob cuts differs from kernel to kernel: trees of each find what is of use.
  const double positions = f.positions();
  const Tiled tiled[] = {
      {"tiles_of_positions", "waste_of_positions", positions, knob(rows)},
      {"tiles_of_height", "waste_of_height", f.out_height, knob(rows)},
      {"tiles_of_width", "waste_of_width", f.out_width, knob(columns)},
      {"tiles_of_channels", "waste_of_channels", f.channels, knob(channels)},
      {"tiles_of_outputs", "waste_of_outputs", f.outputs, knob(channels)},
      {"row_tiles_of_outputs", "row_waste_of_outputs", f.outputs, knob(rows)},
      {"column_tiles_of_channels", "column_waste_of_channels", f.channels, knob(columns)},
      {"column_tiles_of_outputs", "column_waste_of_outputs", f.outputs, knob(columns)},
      {"tiles_of_images", "waste_of_images", f.images, knob(images)},
      {"boxes_of_channels", "box_waste_of_channels", f.channels, knob(box) + 8 * knob(runs)},
      {"steps_of_channels", "step_waste_of_channels", f.channels, knob(depth)},
      {"steps_of_outputs", "step_waste_of_outputs", f.outputs, knob(depth)},
  };
  for (const Tiled& one : tiled) {
    const double tiles = tiles_of(one);
    list.add(one.name, tiles);
    list.add(one.waste, tiles > 0 ? tiles * one.tile / std::max(one.size, 1.0) : 0);
  }
  // Blocks, if tiles are of positions and outputs, or channels; of the weight; of images, height, width and channels.
  const double sharing = std::max(knob(splits), 1.0) * std::max(knob(cluster), 1.0);
  const auto at_least_one = [&](int which) { return std::max(tiles_of(tiled[which]), 1.0); };
  const double across = f.grad_x ? at_least_one(3) : at_least_one(4);
  const struct {
    const char *name, *fill;
    double blocks;
  } grids[] = {
      {"blocks_of_product", "fill_of_product", at_least_one(0) * across * sharing},
      {"blocks_of_weight", "fill_of_weight", at_least_one(5) * at_least_one(6) * sharing},
      {"blocks_of_maps", "fill_of_maps",
       (knob(images) > 0 ? at_least_one(8) : f.images) * at_least_one(1) * at_least_one(2) *
           std::max(at_least_one(3), at_least_one(9)) * sharing},
      {"blocks_of_results", "fill_of_results",
       f.images * at_least_one(1) * at_least_one(2) * at_least_one(4) * sharing},
  };
  for (const auto& grid : grids) {
    const double waves = grid.blocks / machine.multiprocessors;
    list.add_log(grid.name, waves);
    list.add(grid.fill, std::ceil(waves) / std::max(waves, 1e-3));
  }
  list.add_log("positions_of_split", positions / sharing);
  list.add_log("depth_of_split", f.channels * f.kernel_height * f.kernel_width / std::max(f.groups, 1.0) / sharing);
  list.add_log("results_of_warp",
               std::max(knob(rows), 1.0) * std::max(knob(columns), 1.0) * knob(channels) / std::max(knob(warps), 1.0));
}

}  // namespace

double roofline_us(const ProblemFacts& f, const Machine& machine) {
  const double slowness = f.element_bytes == 2 ? 1 : f.element_bytes == 4 && f.is_tf32 ? 2 : 16;
  return kLaunchUs + std::max(f.bytes / machine.bytes_per_us, f.products() * slowness / machine.products_per_us);
}

void append_problem_features(Features& features, const ProblemFacts& facts, const Machine& machine) {
  Listed list(&features, nullptr);
  list_problem(list, facts, machine);
}

void append_config_features(Features& features, const ProblemFacts& facts, const Config& config,
                            const Machine& machine) {
  Listed list(&features, nullptr);
  list_config(list, facts, config, machine);
}

std::vector<std::string> feature_names() {
  std::vector<std::string> names;
  Listed list(nullptr, &names);
  list_problem(list, {}, {});
  list_config(list, {}, {}, {});
  return names;
}

}  // namespace fusedsc::tuning
