#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_swap_ab.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_instances.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

/// A matrix of dense rows as an image: rows are its planes.
ConstTensorView image_of(const void* data, std::int64_t rows, std::int64_t columns) {
  const Sizes sizes{1, rows, 1, columns};
  return {data, DataType::float32, sizes, dense_strides(sizes, Layout::contiguous), Device::gpu};
}

ConstTensorView weight_image(const PointwiseBackwardArguments& a) {
  return image_of(a.weight.data, a.grad_y.sizes[1], a.x.sizes[1]);
}

PlanesCase case_of(const PointwiseBackwardArguments& a) {
  PlanesCase product = planes_case(weight_image(a), a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
  product.swap_ab = true;
  return product;
}

}  // namespace

bool SwapAbInputPass::suits(const PointwiseBackwardArguments& a) {
  const std::int64_t outputs = a.grad_y.sizes[1], channels = a.x.sizes[1];
  return a.x.dtype == DataType::float32 && a.windows.channels == 0 && !a.prologue && !a.gradient_prologue &&
         !a.grad_add && channels % 4 == 0 && (channels == 1 || a.weight.strides[1] == 1) &&
         (outputs == 1 || a.weight.strides[0] == channels) && are_planes({weight_image(a)}) &&
         is_dense(output_matrix(a.grad_x, 1, true), channels);
}

SwapAbInputPass::SwapAbInputPass(const PointwiseBackwardArguments& a)
    : case_(case_of(a)), launch_(plan(plain_float_planes(), case_)) {}

void SwapAbInputPass::run(const PointwiseBackwardArguments& a, void* stream) const {
  const PlanesInstance& instance = *launch_.instance;
  const std::int64_t outputs = a.grad_y.sizes[1], pixels = case_.problem.channels;
  PlanesParameters p;
  launch_.fill(case_, p);
  p.output_rows = a.grad_x.data;
  p.activations = map_of_planes(weight_image(a), case_, instance.depth);
  p.output = map_of_planes(image_of(a.grad_x.data, pixels, a.x.sizes[1]), case_, instance.channels);
  p.rounds_weight = true;
  p.weight = map_of(a.grad_y.data, DataType::float32, outputs, pixels, activation_matrix(a.grad_y, 1, true).first,
                    instance.depth, instance.channels);
  launch_.start(kName, case_, p, stream);
}

}  // namespace fusedsc::gpu::hopper
#endif
