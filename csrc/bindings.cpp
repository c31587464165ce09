// The Python face of the drafting core: array types in, calls through, nothing decided here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "drafter.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sssd {
namespace {

template <typename T, int D>
using Array = nb::ndarray<T, nb::ndim<D>, nb::c_contig, nb::device::cpu>;
using Ids = Array<const std::int64_t, 1>;
using Tokens = Array<const Token, 1>;

template <typename T>
std::span<const T> view(const Array<const T, 1>& array) {
  return {array.data(), array.shape(0)};
}

template <typename T>
nb::ndarray<nb::numpy, T> to_numpy(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return {held->data(), shape, owner};
}

struct Arrays {
  Tokens tokens;
  Tokens suffixes;
};

std::shared_ptr<Segment> make_segment(Tokens tokens, Tokens suffixes, Array<const std::int64_t, 2> dead, int source) {
  if (dead.shape(1) != 2) throw std::invalid_argument("dead ranges are pairs: start and stop");
  std::vector<Segment::Range> ranges;
  for (std::size_t i = 0; i < dead.shape(0); ++i) ranges.push_back({dead.data()[2 * i], dead.data()[2 * i + 1]});
  // A snapshot may be dropped by a thread that drafts: releasing the arrays needs the interpreter.
  std::shared_ptr<const void> owner(new Arrays{tokens, suffixes}, [](const Arrays* arrays) {
    const nb::gil_scoped_acquire gil;
    delete arrays;
  });
  return std::make_shared<Segment>(view(tokens), view(suffixes), std::move(ranges), static_cast<Source>(source),
                                   std::move(owner));
}

// The caller's arrays for many proposals, looked at once: a look costs more than a short draft.
struct Batch {
  Ids ids;
  Array<const std::int32_t, 1> budgets;
  Array<Token, 2> tokens;
  Array<std::int32_t, 2> parents;
  Array<float, 2> scores;
  Array<std::uint8_t, 2> source;
  Array<std::int32_t, 1> counts;

  void check() const {
    const std::size_t rows = ids.shape(0);
    const auto fits = [&](const auto& array) { return array.shape(0) == rows && array.shape(1) == tokens.shape(1); };
    if (budgets.shape(0) != rows || counts.shape(0) != rows || !fits(tokens) || !fits(parents) || !fits(scores) ||
        !fits(source)) {
      throw std::invalid_argument("a batch's arrays differ in rows or width");
    }
  }
};

void propose(Drafter& drafter, const Batch& batch, std::size_t first, std::size_t n_rows) {
  if (first > batch.ids.shape(0) || n_rows > batch.ids.shape(0) - first) {
    throw std::invalid_argument("a batch has fewer rows than are to be drafted");
  }
  const std::size_t width = batch.tokens.shape(1);
  const std::size_t skipped = first * width;
  const TreeArrays out{batch.tokens.data() + skipped, batch.parents.data() + skipped, batch.scores.data() + skipped,
                       batch.source.data() + skipped, batch.counts.data() + first,    width};
  const nb::gil_scoped_release released;
  drafter.propose(view(batch.ids).subspan(first, n_rows), view(batch.budgets).subspan(first, n_rows), out);
}

nb::tuple propose_behind(Drafter& drafter, std::int64_t id, Tokens ahead, std::size_t budget) {
  const std::vector<Node> nodes = drafter.propose_behind(id, view(ahead), budget);
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> scores;
  std::vector<std::uint8_t> source;
  for (const Node& node : nodes) {
    tokens.push_back(node.token);
    parents.push_back(node.parent);
    scores.push_back(static_cast<float>(node.score));
    source.push_back(static_cast<std::uint8_t>(node.source));
  }
  const std::size_t n = nodes.size();
  return nb::make_tuple(to_numpy(std::move(tokens), {n}), to_numpy(std::move(parents), {n}),
                        to_numpy(std::move(scores), {n}), to_numpy(std::move(source), {n}));
}

constexpr std::size_t kCurves = kSources + 1;  // the sources' and the paths'

nb::ndarray<nb::numpy, double> confidence(Drafter& drafter, std::int64_t space) {
  std::vector<double> state(kCurves * Curve::kState);
  const Learned& learned = drafter.learned(space);
  for (std::size_t s = 0; s < kSources; ++s) learned.curves[s].state(state.data() + s * Curve::kState);
  learned.paths.state(state.data() + kSources * Curve::kState);
  return to_numpy(std::move(state), {kCurves, Curve::kBins, 3});
}

void restore_confidence(Drafter& drafter, std::int64_t space, Array<const double, 3> state) {
  if (state.shape(0) != kCurves || state.shape(1) != Curve::kBins || state.shape(2) != 3) {
    throw std::invalid_argument("confidence: the state has another shape");
  }
  Learned& learned = drafter.learned(space);
  for (std::size_t s = 0; s < kSources; ++s) learned.curves[s].restore(state.data() + s * Curve::kState);
  learned.paths.restore(state.data() + kSources * Curve::kState);
}

nb::ndarray<nb::numpy, double> reliability(const Drafter& drafter) {
  const Reliability& seen = drafter.reliability();
  std::vector<double> table;
  for (std::size_t b = 0; b < Reliability::kBins; ++b) {
    table.insert(table.end(), {seen.nodes[b], seen.predicted[b], seen.observed[b]});
  }
  return to_numpy(std::move(table), {Reliability::kBins, 3});
}

}  // namespace

NB_MODULE(_core, m) {
  nb::class_<MixtureRules>(m, "MixtureRules")
      .def("__init__",
           [](MixtureRules* self, std::size_t max_match, std::size_t context_most, std::size_t store_most,
              std::size_t enough, std::size_t sure, std::size_t head_start, double context_doubt,
              double store_doubt, std::size_t sure_from, double longest_share) {
             new (self) MixtureRules{{max_match, context_most, store_most, enough, sure, head_start},
                                     {max_match, context_doubt, store_doubt, sure_from},
                                     longest_share};
           },
           nb::kw_only(), "max_match"_a, "context_most"_a, "store_most"_a, "enough"_a, "sure"_a, "head_start"_a,
           "context_doubt"_a, "store_doubt"_a, "sure_from"_a, "longest_share"_a);

  nb::class_<AuthorsRules>(m, "AuthorsRules")
      .def("__init__",
           [](AuthorsRules* self, std::size_t prefix, std::size_t window, std::size_t bridge, double context_weight,
              std::size_t store_most, std::size_t store_least, std::size_t enough, std::size_t branch,
              std::size_t most_children) {
             new (self) AuthorsRules{prefix,      window, bridge, context_weight, store_most,
                                     store_least, enough, branch, most_children};
           },
           nb::kw_only(), "prefix"_a, "window"_a, "bridge"_a, "context_weight"_a, "store_most"_a, "store_least"_a,
           "enough"_a, "branch"_a, "most_children"_a);

  nb::class_<Segment>(m, "Segment")
      .def(nb::new_(&make_segment), "tokens"_a, "suffixes"_a, "dead"_a, "source"_a)
      .def("find", [](const Segment& self, Tokens query) {
        const Interval found = self.find(query.data(), query.shape(0));
        return nb::make_tuple(found.first, found.last);
      }, "query"_a)
      .def("check", [](const Segment& self) {
        std::vector<std::string> problems;
        self.check(problems);
        return problems;
      });

  nb::class_<Batch>(m, "Batch")
      .def("__init__",
           [](Batch* self, Ids ids, Array<const std::int32_t, 1> budgets, Array<Token, 2> tokens,
              Array<std::int32_t, 2> parents, Array<float, 2> scores, Array<std::uint8_t, 2> source,
              Array<std::int32_t, 1> counts) {
             const Batch batch{ids, budgets, tokens, parents, scores, source, counts};
             batch.check();
             new (self) Batch(batch);
           },
           nb::kw_only(), "request_ids"_a.noconvert(), "budgets"_a.noconvert(), "tokens"_a.noconvert(),
           "parents"_a.noconvert(), "scores"_a.noconvert(), "source"_a.noconvert(), "counts"_a.noconvert());

  nb::class_<Drafter>(m, "Drafter")
      .def("__init__",
           [](Drafter* self, const MixtureRules& mixture, const AuthorsRules* authors, std::size_t n_threads,
              std::size_t rows_per_thread, std::size_t background_from, bool learn) {
             DrafterOptions options{mixture, std::nullopt, n_threads, rows_per_thread, background_from, learn};
             if (authors != nullptr) options.authors = *authors;
             new (self) Drafter(options);
           },
           "mixture"_a, "authors"_a.none(), nb::kw_only(), "n_threads"_a, "rows_per_thread"_a, "background_from"_a,
           "learn"_a)
      .def("begin",
           [](Drafter& self, std::int64_t id, Tokens prompt, Ids namespaces, Tokens prediction) {
             const auto copy = [](const Tokens& of) { return std::vector<Token>(of.data(), of.data() + of.shape(0)); };
             self.begin(id, copy(prompt), view(namespaces), copy(prediction));
           },
           "request_id"_a, "prompt"_a, "namespaces"_a, "prediction"_a)
      .def("propose", &propose, "batch"_a, "first_row"_a, "n_rows"_a)
      .def("propose_behind", &propose_behind, "request_id"_a, "ahead"_a, "budget"_a)
      .def("accept", [](Drafter& self, std::int64_t id, Tokens tokens) { self.accept(id, view(tokens)); },
           "request_id"_a, "tokens"_a)
      .def("end", &Drafter::end, "request_id"_a)
      .def("text",
           [](Drafter& self, std::int64_t id, std::size_t n_prompt) {
             std::vector<Token> text = self.text(id, n_prompt);
             const std::size_t n = text.size();
             return to_numpy(std::move(text), {n});
           },
           "request_id"_a, "n_prompt"_a)
      .def("publish",
           [](Drafter& self, std::int64_t space, const std::vector<std::shared_ptr<Segment>>& segments) {
             self.publish(space, Segments(segments.begin(), segments.end()));
           },
           "namespace_id"_a, "segments"_a)
      .def("settle", &Drafter::settle, nb::call_guard<nb::gil_scoped_release>())
      .def("confidence", &confidence, "namespace_id"_a)
      .def("restore_confidence", &restore_confidence, "namespace_id"_a, "state"_a)
      .def("reliability", &reliability)
      .def("memory", &Drafter::memory)
      .def("check", &Drafter::check)
      .def("plant_fault", &Drafter::plant_fault, "request_id"_a);
}

}  // namespace sssd
