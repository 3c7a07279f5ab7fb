/// The upper tail Q of the normal distribution, of which every device makes GELU, to a rounding or so even far out:
///   Q(t) = exp(-t^2/2) * w * P(w - centre),  w = 1/(1 + rate*t),  0 <= t.
/// Nothing cancels, there is no branch, and one exponential serves the distribution and its density. P's relative error
/// is 3.5e-9 in single precision, 1.3e-17 in double; scripts/fit_normal_tail prints it.
#pragma once

namespace fusedsc {

template <class T>
struct NormalTail;

template <>
struct NormalTail<float> {
  float rate = 0.3F, centre = 0.5625F;
  float most = 40;  ///< of t: from here on Q is zero
  float polynomial[10] = {-0.0206285964F,  0.008032179286F, 0.042833415F,  -0.01902279378F, -0.08804933493F,
                          0.003010673511F, 0.2261595518F,   0.3883234252F, 0.3750586231F,   0.2439499748F};
};

template <>
struct NormalTail<double> {
  double rate = 0.2, centre = 0.5625;
  double most = 40;
  double polynomial[22] = {
      -0.0008447015769574434834, 0.0003975013321764214292, 0.002260488465352468184, -0.001309615127762202645,
      -0.003938750284673432761,  0.002758076088434339148,  0.006677987796907006326, -0.004674837656267469483,
      -0.01284685834814218244,   0.005532717394765546545,  0.02790641460148260382,  0.004791031959173697563,
      -0.05837224404996719785,   -0.07345988433358710745,  0.04811436606986818272,  0.2940610382809671275,
      0.5477935909957471561,     0.682503086479244129,     0.6522871543825519124,   0.5038233279367698416,
      0.3221133011331591771,     0.1721519721037675357};
};

/// The density at zero, 1/sqrt(2*pi).
inline constexpr double kNormalPeak = 0.39894228040143267794;

}  // namespace fusedsc
