#include "reference/memory.h"

namespace fusedsc::reference {
namespace {

constexpr std::align_val_t kAlignment{64};

MemorySource source = {
    .device = Device::cpu,
    .allocate = [](std::size_t bytes) { return ::operator new(bytes, kAlignment); },
    .release = [](void* memory, std::size_t) { ::operator delete(memory, kAlignment); },
    .wait = [] {},
};

}  // namespace

void use_memory(const MemorySource& other) { source = other; }
const MemorySource& memory() { return source; }

}  // namespace fusedsc::reference
