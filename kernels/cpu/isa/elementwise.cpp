// The loops of elementwise.h. The work is divided by linear position into tasks that depend on the number of
// elements only.
#include <weft/kernels/cpu/isa/elementwise.h>

#include <weft/kernels/cpu/allocator.h>
#include <weft/kernels/cpu/isa/stream.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

constexpr int64_t kBlock = 512;

template <class U> void move_typed(const void* xv, int64_t xs, void* yv, int64_t ys, int64_t n) {
  const U* const x = static_cast<const U*>(xv);
  U* const y = static_cast<U*>(yv);
  if (xs == 0 && ys == 1) {
    const U value = *x;
    for (int64_t i = 0; i < n; ++i) y[i] = value;
  } else if (xs == 1 && ys == 1) {
    if (n > 0) __builtin_memcpy(y, x, static_cast<size_t>(n) * sizeof(U));
  } else if (xs == -1 && ys == 1) {  // in vectors, since the stride is a constant
    for (int64_t i = 0; i < n; ++i) y[i] = x[-i];
  } else if (ys == 1) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i * xs];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i * ys] = x[i * xs];
  }
}

inline char* at(void* base, int64_t elements, int64_t width) {
  return static_cast<char*>(base) + elements * width;
}

/// One operand of a task.
struct Operand {
  void* data;
  int64_t width, compute_width, inner;
  Convert convert;  // to the compute type (for the output: from it); null if it is the same
  bool direct;      // the kernel can use the memory without a copy
};

/// One run along the last dim, from `base` pointers on.
void run_inner(Kernel kernel, const Params& params, const Operand* ops, void* const* base, int count,
               int64_t n) {
  alignas(64) char buffer[kMaxOperands][kBlock * 8];
  alignas(64) char raw[kBlock * 8];
  void* p[kMaxOperands];
  for (int64_t done = 0; done < n;) {
    const int64_t m = n - done < kBlock ? n - done : kBlock;
    for (int i = 1; i < count; ++i) {
      const Operand& o = ops[i];
      void* const from = at(base[i], done * o.inner, o.width);
      if (o.direct) {
        p[i] = from;
        continue;
      }
      p[i] = buffer[i];
      if (o.inner == 0 && done > 0) continue;  // filled for the first block, which is the longest
      if (!o.convert) {
        move_strided(o.width, from, o.inner, buffer[i], 1, m);
      } else if (o.inner == 1) {
        o.convert(from, buffer[i], m);
      } else if (o.inner == 0) {
        o.convert(from, raw, 1);
        move_strided(o.compute_width, raw, 0, buffer[i], 1, m);
      } else {
        move_strided(o.width, from, o.inner, raw, 1, m);
        o.convert(raw, buffer[i], m);
      }
    }
    const Operand& out = ops[0];
    void* const to = at(base[0], done * out.inner, out.width);
    p[0] = out.direct ? to : buffer[0];
    kernel(params, p, m);
    if (!out.direct) {
      if (!out.convert) {
        move_strided(out.width, buffer[0], 1, to, out.inner, m);
      } else if (out.inner == 1) {
        out.convert(buffer[0], to, m);
      } else {
        out.convert(buffer[0], raw, m);
        move_strided(out.width, raw, 1, to, out.inner, m);
      }
    }
    done += m;
  }
}

/// `rows` short runs at once, `step` being each operand's stride from row to row: rows * n fits in a block.
void run_rows(Kernel kernel, const Params& params, const Operand* ops, void* const* base, const int64_t* step,
              int count, int64_t rows, int64_t n) {
  alignas(64) char buffer[kMaxOperands][kBlock * 8];
  alignas(64) char raw[kBlock * 8];
  void* p[kMaxOperands];
  const auto dense = [&](int i) { return ops[i].inner == 1 && step[i] == n; };
  for (int i = 1; i < count; ++i) {
    const Operand& o = ops[i];
    void* from = base[i];
    if (!dense(i)) {
      from = o.convert ? raw : buffer[i];
      for (int64_t r = 0; r < rows; ++r)
        move_strided(o.width, at(base[i], r * step[i], o.width), o.inner, at(from, r * n, o.width), 1, n);
    }
    if (o.convert) o.convert(from, buffer[i], rows * n);
    p[i] = o.convert ? buffer[i] : from;
  }
  const Operand& out = ops[0];
  p[0] = dense(0) && !out.convert ? base[0] : buffer[0];
  kernel(params, p, rows * n);
  if (p[0] == base[0]) return;
  void* from = buffer[0];
  if (out.convert) {
    from = dense(0) ? base[0] : raw;
    out.convert(buffer[0], from, rows * n);
  }
  if (dense(0)) return;
  for (int64_t r = 0; r < rows; ++r)
    move_strided(out.width, at(from, r * n, out.width), 1, at(base[0], r * step[0], out.width), out.inner, n);
}

/// Scratch memory for the duration of a call.
struct Block {
  explicit Block(size_t n) : data(allocate(n)), bytes(n) {}
  ~Block() { deallocate(data, bytes); }
  Block(const Block&) = delete;
  void* const data;
  const size_t bytes;
};

}  // namespace

void move_strided(int64_t width, const void* x, int64_t xs, void* y, int64_t ys, int64_t n) {
  switch (width) {
    case 1: return move_typed<uint8_t>(x, xs, y, ys, n);
    case 2: return move_typed<uint16_t>(x, xs, y, ys, n);
    case 4: return move_typed<uint32_t>(x, xs, y, ys, n);
    default: return move_typed<uint64_t>(x, xs, y, ys, n);
  }
}

Loops::Loops(const View* const* views, int count) {
  const View& out = *views[0];
  for (int d = 0; d < out.ndim(); ++d) {
    numel *= out.sizes[d];
    if (out.sizes[d] == 1) continue;
    int slot = ndim++;  // insertion by the output's stride: the smallest comes last
    for (; slot > 0 && stride[0][slot - 1] < out.strides[d]; --slot) {
      size[slot] = size[slot - 1];
      for (int i = 0; i < count; ++i) stride[i][slot] = stride[i][slot - 1];
    }
    size[slot] = out.sizes[d];
    for (int i = 0; i < count; ++i) stride[i][slot] = views[i]->strides[d];
  }
  int last = 0;
  for (int d = 1; d < ndim; ++d) {
    bool merge = true;
    for (int i = 0; i < count; ++i) merge = merge && stride[i][last] == stride[i][d] * size[d];
    if (merge) {
      size[last] *= size[d];
    } else {
      size[++last] = size[d];
    }
    for (int i = 0; i < count; ++i) stride[i][last] = stride[i][d];
  }
  if (ndim > 0) {
    ndim = last + 1;
  } else {
    ndim = 1;
    size[0] = 1;
    for (int i = 0; i < count; ++i) stride[i][0] = 1;
  }
}

int Loops::transposed_dim(int operand) const {
  const int last = ndim - 1;
  const int64_t* const s = stride[operand];
  if (last < 1 || stride[0][last] != 1 || s[last] == 1 || s[last] == 0 || size[last] < 8) return -1;
  for (int d = 0; d < last; ++d)
    if (s[d] == 1 && size[d] >= 8) return d;
  return -1;
}

Shape Loops::dense_strides(const View& out) {
  Shape strides(out.ndim(), 0);
  int64_t step = 1;
  for (int64_t bound = -1;;) {  // dims by growing stride of the output, equal ones from the last to the first
    int64_t next = -1;
    for (int64_t s : out.strides)
      if (s > bound && (next < 0 || s < next)) next = s;
    if (next < 0) return strides;
    for (int d = out.ndim() - 1; d >= 0; --d) {
      if (out.strides[d] != next) continue;
      strides[d] = step;
      step *= out.sizes[d];
    }
    bound = next;
  }
}

void Loops::locate(int64_t position, int count, int64_t* index, int64_t* offsets) const {
  for (int i = 0; i < count; ++i) offsets[i] = 0;
  if (position == 0) {
    for (int d = 0; d < ndim; ++d) index[d] = 0;
    return;
  }
  for (int d = ndim - 1; d >= 0; --d) {
    index[d] = d == 0 ? position : position % size[d];
    if (d > 0) position /= size[d];
    for (int i = 0; i < count; ++i) offsets[i] += index[d] * stride[i][d];
  }
}

void Loops::advance(int dim, int64_t n, int count, int64_t* index, int64_t* offsets) const {
  index[dim] += n;
  for (int i = 0; i < count; ++i) offsets[i] += n * stride[i][dim];
  for (int d = dim; d > 0 && index[d] == size[d]; --d) {
    index[d] = 0;
    ++index[d - 1];
    for (int i = 0; i < count; ++i) offsets[i] += stride[i][d - 1] - size[d] * stride[i][d];
  }
}

void run_elementwise(Kernel kernel, const Params& params, const View* const* views, const DType* compute,
                     int count, int64_t grain) {
  bool plain = true;
  for (int i = 0; i < count; ++i) plain = plain && views[i]->dtype == compute[i] && views[i]->is_contiguous();
  if (plain) {
    const int64_t n = views[0]->numel();
    void* p[kMaxOperands];
    for (int i = 0; i < count; ++i) p[i] = views[i]->data;
    if (n <= grain) {
      if (n > 0) kernel(params, p, n);
      return;
    }
    const int64_t width = size_of(compute[0]);
    bool stream = streams(n * width);
    for (int i = 1; i < count; ++i) stream = stream && p[i] != p[0];  // in place, its lines are read anyway
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      const auto run = [&](void* out, int64_t first, int64_t m) {
        void* q[kMaxOperands] = {out};
        for (int i = 1; i < count; ++i) q[i] = at(p[i], begin + first, size_of(compute[i]));
        kernel(params, q, m);
      };
      void* const out = at(p[0], begin, width);
      if (stream) run_streamed(out, width, end - begin, run);
      else run(out, 0, end - begin);
    });
    return;
  }
  const Loops loops(views, count);
  if (loops.numel == 0) return;
  if (loops.numel >= kCheapGrain) {
    for (int i = 1; i < count; ++i) {
      if (loops.transposed_dim(i) < 0) continue;
      // Reading it line by line would touch a cache line per element. So copy it into the output's order
      // first, tile by tile.
      const size_t bytes = static_cast<size_t>(loops.numel * size_of(views[i]->dtype));
      Block block(bytes);
      View dense = *views[i];
      dense.data = block.data;
      dense.strides = loops.dense_strides(*views[0]);
      copy_any(*views[i], dense);
      const View* replaced[kMaxOperands];
      for (int k = 0; k < count; ++k) replaced[k] = k == i ? &dense : views[k];
      return run_elementwise(kernel, params, replaced, compute, count, grain);
    }
  }
  const int64_t row = loops.size[loops.ndim - 1];
  Operand ops[kMaxOperands];
  for (int i = 0; i < count; ++i) {
    const View& v = *views[i];
    const bool same = v.dtype == compute[i];
    const int64_t inner = loops.stride[i][loops.ndim - 1];
    const Convert convert = same     ? nullptr
                            : i == 0 ? converter(compute[i], v.dtype)
                                     : converter(v.dtype, compute[i]);
    ops[i] = {v.data, size_of(v.dtype), size_of(compute[i]),
              inner,  convert,          same && (inner == 1 || row == 1)};
  }
  bool direct = true;
  for (int i = 0; i < count; ++i) direct = direct && ops[i].direct;
  const int last = loops.ndim - 1;
  // short rows: one call of the kernel per row would cost more than the work
  const bool short_rows = last > 0 && row <= 32;
  parallel_for(loops.numel, grain, [&](int64_t begin, int64_t end) {
    int64_t index[kMaxDims], offsets[kMaxOperands];
    loops.locate(begin, count, index, offsets);
    for (;;) {
      const int64_t left = row - index[last];
      const int64_t n = left < end - begin ? left : end - begin;
      void* base[kMaxOperands];
      for (int i = 0; i < count; ++i) base[i] = at(ops[i].data, offsets[i], ops[i].width);
      if (short_rows && n == row) {
        const int64_t fit = kBlock / row, there = loops.size[last - 1] - index[last - 1],
                      wanted = (end - begin) / row;
        const int64_t most = fit < there ? fit : there, rows = most < wanted ? most : wanted;
        int64_t step[kMaxOperands];
        for (int i = 0; i < count; ++i) step[i] = loops.stride[i][last - 1];
        run_rows(kernel, params, ops, base, step, count, rows, row);
        if ((begin += rows * row) >= end) return;
        loops.advance(last - 1, rows, count, index, offsets);
        continue;
      }
      if (direct && last > 0 && n == row) {  // all whole rows, since bookkeeping takes a fifth of such a call
        const int64_t there = loops.size[last - 1] - index[last - 1], wanted = (end - begin) / row;
        const int64_t rows = there < wanted ? there : wanted;
        for (int64_t r = 0; r < rows; ++r) {
          kernel(params, base, row);
          for (int i = 0; i < count; ++i) base[i] = at(base[i], loops.stride[i][last - 1], ops[i].width);
        }
        if ((begin += rows * row) >= end) return;
        loops.advance(last - 1, rows, count, index, offsets);
        continue;
      }
      if (direct) kernel(params, base, n);
      else run_inner(kernel, params, ops, base, count, n);
      if ((begin += n) >= end) return;
      loops.advance(last, n, count, index, offsets);
    }
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
