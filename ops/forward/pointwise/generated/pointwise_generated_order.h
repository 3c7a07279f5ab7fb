/// The order of a problem's generated kernels, as far as counts can tell which are the best.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"
#include "fusedsc/forward/pointwise/generated/pointwise_tiles_text.h"

namespace fusedsc::gpu {

/// How the target's kernels by fragments find a problem's rows: `why_no_fragments` is the entry's of those that are
/// compiled with the library.
tuning::FragmentRows fragment_rows_of(const std::string& why_no_fragments, bool packed);

/// All other configs and the best by fragments, by their counted times, laid out so that candidates, which are taken
/// from all over a list (tuning::spread_places), meet the best first, and after three of these one of another kind.
tuning::Configs laid_out(const tuning::Configs& all, const FragmentProblem& problem);

}  // namespace fusedsc::gpu
