/// Products of matrices on the host executor: with waves of 64 by v_mfma; with waves of 32, where copies wait as on
/// AMD's GPUs, those of 16 bits by v_wmma: blocks of even numbers play gfx11, the others gfx12. All others by fused
/// multiply-adds.
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/matrix_amd.h"

namespace fusedsc::gpu {

template <class T, class Tile>
class ProductOnHost {
 public:
  using A = Accumulator<T>;
  static constexpr bool kKeepsSums = false;

  static int parts() {
    if (wave_size() == 64) return MatrixCoreProduct<T, Tile, Mfma<T>>::parts();
    if constexpr (kHasWmma) return MatrixCoreProduct<T, Tile, Wmma<T, 11>>::parts();
    else return FmaProduct<T, Tile>::parts();
  }

  void clear() {
    with_kind(products_, [](auto& product) { product.clear(); });
  }

  template <class Rows, class Cols>
  void multiply(const Rows& rows, const Cols& cols, int depth) {
    with_kind(products_, [&](auto& product) { product.multiply(rows, cols, depth); });
  }

  template <class RowsTile, class ColsTile>
  void leave(A* sums) const {
    with_kind(products_, [&](const auto& product) { product.template leave<RowsTile, ColsTile>(sums); });
  }

 private:
#ifdef FUSEDSC_HOST_COPIES_WAIT
  static constexpr bool kHasWmma = sizeof(T) == 2;
#else
  static constexpr bool kHasWmma = false;
#endif
  struct Plain {
    FmaProduct<T, Tile> fma;
  };
  template <class Half>
  struct OfRadeons {
    MatrixCoreProduct<Half, Tile, Wmma<Half, 11>> gfx11;
    MatrixCoreProduct<Half, Tile, Wmma<Half, 12>> gfx12;
  };
  struct Products : std::conditional_t<kHasWmma, OfRadeons<std::conditional_t<kHasWmma, T, Float16>>, Plain> {
    MatrixCoreProduct<T, Tile, Mfma<T>> mfma;
  };

  template <class SomeProducts, class Use>
  static void with_kind(SomeProducts& products, const Use& use) {
    if (wave_size() == 64) {
      use(products.mfma);
    } else if constexpr (kHasWmma) {
      if (block_index() % 2 == 0) use(products.gfx11);
      else use(products.gfx12);
    } else {
      use(products.fma);
    }
  }

  Products products_;
};

}  // namespace fusedsc::gpu
