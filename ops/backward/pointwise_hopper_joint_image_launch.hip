#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/pointwise_hopper_joint.h"

namespace fusedsc::gpu::hopper {
namespace {

template <class Maker>
FUSEDSC_HOPPER_KERNEL(Maker::kThreads)
image_kernel(const JointImageParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  Maker::run(p);
#endif
}

template <class T, int kMostChannels, int kRun, int kRowBytes>
void launch_image(const JointImageParameters& p, void* stream) {
  using Maker = JointImageMaker<T, kMostChannels, kRun, kRowBytes>;
  launch_following("pointwise_conv2d_backward", image_kernel<Maker>, (p.channels + p.columns - 1) / p.columns * p.columns / kRun, Maker::kThreads,
                   stream, p, Maker::memory_bytes());
}

template <class T>
void launch_image_of(const JointImageParameters& p, bool in_tiles, void* stream) {
  if (!in_tiles) launch_image<T, kMostImageChannels, 2, 0>(p, stream);
  else if (p.wide == 32) launch_image<T, kMostImageChannels, 2, 64>(p, stream);
  else launch_image<T, kMostImageChannels, 2, 128>(p, stream);
}

}  // namespace

void make_joint_images(const PointwiseBackwardArguments& a, const JointImage& image, int columns, int wide,
                       bool in_tiles, unsigned char* to, void* stream) {
  JointImageParameters p;
  p.weight = a.weight.data;
  p.weight_row = a.weight.strides[0];
  p.grad_scale = static_cast<const float*>(a.gradient_prologue.grad_scale.data);
  p.output_scale = static_cast<const float*>(a.gradient_prologue.output_scale.data);
  p.offset = static_cast<const float*>(a.gradient_prologue.offset.data);
  p.outputs = static_cast<int>(a.grad_y.sizes[1]);
  p.channels = static_cast<int>(a.x.sizes[1]);
  p.columns = columns;
  p.wide = wide;
  p.image = image;
  p.to = to;
  if (a.x.dtype == DataType::float16) launch_image_of<Float16>(p, in_tiles, stream);
  else launch_image_of<BFloat16>(p, in_tiles, stream);
}

}  // namespace fusedsc::gpu::hopper
#endif
