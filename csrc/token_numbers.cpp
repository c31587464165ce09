#include "token_numbers.h"

#include <bit>

namespace sssd {

void TokenNumbers::start(std::size_t most) {
  size_ = 0;
  if (2 * most > slots_.size()) slots_.assign(std::bit_ceil(2 * most), {});
  if (++stamp_ == 0) {  // wrapped: old stamps would look new
    slots_.assign(slots_.size(), {});
    stamp_ = 1;
  }
}

}  // namespace sssd
