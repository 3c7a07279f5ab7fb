/// Schedules of the host executor in which one wave falls behind, as a GPU may leave any of them alone for any time.
#pragma once

namespace fusedsc::gpu::executor {

/// From now on this wave of each block goes on only where no other thread can, and is overtaken at each wait for
/// something, even if that has come already. Negative: none.
void set_late_wave(int wave);

}  // namespace fusedsc::gpu::executor
