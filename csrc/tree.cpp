#include "tree.h"

#include <algorithm>

namespace sssd {

// child_[p + 1] heads the list of p's children, best first; child_[0] that of the root's.
void Layout::link(const std::vector<Node>& nodes) {
  const std::size_t n = nodes.size();
  height_.assign(n, 0);
  child_.assign(n + 1, -1);
  sibling_.assign(n, -1);
  for (std::size_t i = n; i-- > 0;) {
    const std::int32_t parent = nodes[i].parent;
    if (parent != kRoot) height_[parent] = std::max(height_[parent], height_[i] + 1);
    std::int32_t* link = &child_[parent + 1];
    const auto goes_first = [&](std::int32_t other) {
      return nodes[other].path > nodes[i].path || (nodes[other].path == nodes[i].path && height_[other] > height_[i]);
    };
    while (*link != -1 && goes_first(*link)) link = &sibling_[*link];
    sibling_[i] = *link;
    *link = static_cast<std::int32_t>(i);
  }
}

void Layout::arrange(std::vector<Node>& nodes) {
  link(nodes);
  arranged_.clear();
  place_.resize(nodes.size());
  stack_.clear();
  if (child_[0] != -1) stack_.push_back(child_[0]);
  while (!stack_.empty()) {
    const std::int32_t i = stack_.back();
    stack_.pop_back();
    if (sibling_[i] != -1) stack_.push_back(sibling_[i]);
    if (child_[i + 1] != -1) stack_.push_back(child_[i + 1]);
    place_[i] = static_cast<std::int32_t>(arranged_.size());
    arranged_.push_back(nodes[i]);
    Node& node = arranged_.back();
    if (node.parent != kRoot) node.parent = place_[node.parent];
  }
  nodes.swap(arranged_);
}

}  // namespace sssd
