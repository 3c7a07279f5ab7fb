/// Squeeze-and-excitation of a = activation(scale[c]*x + shift[c]): averages over maps, gates, and their gradients.
#pragma once

#include "reference/fusion.h"

namespace fusedsc::reference {

/// [N, C, 1, 1]: the average of a over each map.
Array map_averages(const Precision& precision, const Array& x, const Affine& map);

/// a * gate, which is [N, C, 1, 1].
Array gated(const Precision& precision, const Array& x, const Affine& map, const Array& gate);

/// [N, C, 1, 1]: the gradient of the gate.
Array gate_gradient(const Precision& precision, const Array& grad_out, const Array& x, const Affine& map);

/// The gradient at scale*x + shift of what comes back through both: grad_out to gated()'s result, grad_mean to the
/// averages.
Array gated_gradient(const Precision& precision, const Array& grad_out, const Array& gate, const Array& grad_mean,
                     const Array& x, const Affine& map);

}  // namespace fusedsc::reference
