/// Stores that go around the caches. A store to a line that is in no cache first reads that line from memory, to
/// overwrite it then; where a processor does so even if a line is overwritten as a whole, storing large tensors around
/// its caches saves a third of a copy's traffic.
#pragma once

#include <cstdint>

#include "fusedsc/common/cpu/prefetcher.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc {

enum class StreamUse { where_it_pays, never, always };

/// In the whole process, from now on. For tests, and for comparing.
void use_streams(StreamUse use);

/// Whether to store so many bytes around the caches: on processors that gain by it, and if they would not stay in a
/// cache until somebody reads them.
bool streams_pay(std::int64_t bytes);

/// Whether vectors of `vector_bytes` of neighbouring channels of the tensor are whole cache lines: of parts of lines,
/// each would go to memory by itself.
bool has_whole_lines(const TensorView& tensor, std::int64_t vector_bytes);

}  // namespace fusedsc
