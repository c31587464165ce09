// Numbers for the distinct tokens of one list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text.h"

namespace sssd {

// Numbers tokens 0, 1, 2... in the order they first come.
//
// Memory: 12 bytes for each of twice the tokens of the longest list. Cost: number O(1), start O(1).
class TokenNumbers {
 public:
  TokenNumbers() : slots_(kFewest) {}

  // Forgets everything; up to `most` calls of `number` may follow.
  void start(std::size_t most);
  std::uint32_t number(Token token) {
    std::size_t i = (static_cast<std::uint32_t>(token) * 0x9E3779B1U >> 7) & (slots_.size() - 1);
    while (slots_[i].stamp == stamp_ && slots_[i].token != token) i = (i + 1) & (slots_.size() - 1);
    if (slots_[i].stamp != stamp_) slots_[i] = {stamp_, token, size_++};
    return slots_[i].number;
  }
  std::uint32_t size() const { return size_; }

 private:
  static constexpr std::size_t kFewest = 256;

  struct Slot {
    std::uint32_t stamp = 0;  // the list it was written for
    Token token = 0;
    std::uint32_t number = 0;
  };

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::uint32_t stamp_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace sssd
