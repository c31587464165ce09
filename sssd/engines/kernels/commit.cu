// What a device does to the KV cache after a forward: accept greedily, commit, copy a prefix.
//
// The cache is one array of 32-bit words, [parts, slots, heads, S, words]: a part is the keys or the values of a layer,
// `words` are one token's of one head. Nothing here knows the type of what it moves. Compiled to commit.ptx by
// scripts/make_kernels.py; the engine's tests emulate each kernel, thread by thread.

// One thread a row: follow the argmax down the draft tree and note the columns on the way.
//
// Children stand behind their parent, so one pass over the columns is the whole walk. The root is column
// n_forced - 1 and the first one that is scored. keep[b, 0 .. n_keep[b]) is ascending and begins with the forced columns.
extern "C" __global__ void accept_greedy(const long long* input_ids,  // [rows, width]
                                         const int* parents,          // [rows, width]
                                         const int* n_forced,         // [rows]
                                         const int* n_nodes,          // [rows]
                                         const long long* next_ids,   // [rows, scored]
                                         int* keep,                   // [rows, width]
                                         int* n_keep,                 // [rows]
                                         int rows, int width, int scored) {
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= rows) return;
  const int root = n_forced[b] - 1;
  for (int i = 0; i <= root; ++i) keep[b * width + i] = i;
  int node = root;
  int kept = root + 1;
  for (int c = root + 1; c < n_nodes[b]; ++c) {
    const bool is_child = parents[b * width + c] == node;
    if (is_child && input_ids[b * width + c] == next_ids[b * scored + node - root]) {
      node = c;
      keep[b * width + kept++] = c;
    }
  }
  n_keep[b] = kept;
}

// One block a head of a row of a part, grid (heads, rows, parts): column keep[b, j] moves to column j.
//
// A thread moves the same word of every column, so threads need no barrier; keep ascends and keep[j] >= j, so a thread
// reads no word that it has overwritten.
extern "C" __global__ void kv_commit(unsigned int* kv, const long long* past_lens, const int* keep, const int* n_keep,
                                     int width, int first_slot, int slots, int cache_len, int words) {
  const int b = blockIdx.y;
  const long long head = ((long long)blockIdx.z * slots + first_slot + b) * gridDim.x + blockIdx.x;
  unsigned int* columns = kv + (head * cache_len + past_lens[b]) * words;
  for (int w = threadIdx.x; w < words; w += blockDim.x) {
    for (int j = 0; j < n_keep[b]; ++j) {
      const int from = keep[b * width + j];
      if (from != j) columns[(long long)j * words + w] = columns[(long long)from * words + w];
    }
  }
}

// Grid (heads, pieces, parts): the first n tokens of slot src become those of slot dst.
extern "C" __global__ void kv_copy(unsigned int* kv, int src, int dst, int n, int slots, int cache_len, int words) {
  const long long per_head = (long long)cache_len * words;
  const long long part = (long long)blockIdx.z * slots;
  const unsigned int* from = kv + ((part + src) * gridDim.x + blockIdx.x) * per_head;
  unsigned int* to = kv + ((part + dst) * gridDim.x + blockIdx.x) * per_head;
  const long long step = (long long)gridDim.y * blockDim.x;
  for (long long i = (long long)blockIdx.y * blockDim.x + threadIdx.x; i < (long long)n * words; i += step) {
    to[i] = from[i];
  }
}
