#include "ops/mistakes.h"
#include "ops/squeeze_excite_cases.h"

namespace fusedsc::reference {
namespace {

class SqueezeExcite : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, SqueezeExcite, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SqueezeExcite, Squeeze) { for_each_case(squeeze_excite_cases(GetParam()), verify_squeeze); }
TEST_P(SqueezeExcite, Excite) { for_each_case(squeeze_excite_cases(GetParam()), verify_excite); }
TEST_P(SqueezeExcite, ExciteBackward) { for_each_case(squeeze_excite_cases(GetParam()), verify_excite_backward); }
TEST_P(SqueezeExcite, SqueezeBackward) { for_each_case(squeeze_excite_cases(GetParam()), verify_squeeze_backward); }

}  // namespace
}  // namespace fusedsc::reference
