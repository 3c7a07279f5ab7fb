/// Activations and their derivatives, as PyTorch defines them.
#pragma once

#include "fusedsc/common/problem.h"
#include "reference/bounded.h"

namespace fusedsc::reference {

double activate(Activation activation, double z);

/// At a kink, PyTorch's value.
double derivative(Activation activation, double z);

Bounded activate(const Precision& precision, Activation activation, const Bounded& z);

/// Where z may lie on either side of a kink, the bound spans the derivatives of both sides.
Bounded derivative(const Precision& precision, Activation activation, const Bounded& z);

}  // namespace fusedsc::reference
