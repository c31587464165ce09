// What one draft may draw from.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "context.h"
#include "segment.h"

namespace sssd {

struct Sources {
  const ContextIndex& context;     // the request's prompt and output
  Suffix suffix;                   // what is continued: the context's end, or that of guesses behind it
  std::size_t prompt_size;         // how much of it is prompt
  std::size_t cursor;              // position in it behind what was copied last
  const ContextIndex* prediction;  // the client's guess of the output, or null
  bool on_prediction;              // the output so far is the beginning of the guess
  std::vector<std::shared_ptr<const Segments>> stores;  // pinned for the draft
};

}  // namespace sssd
