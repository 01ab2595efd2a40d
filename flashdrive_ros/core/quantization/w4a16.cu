// Products of bf16 activations with 4-bit weights for up to 16 rows, and those weights made plain.
//
// The weights are the A operand of mma.m16n8k16 (16 outputs x 16 inputs), the rows of x its B
// operand.  They are stored by fragments: `words` [n/16][k/64][32 lanes] of 16 bytes, word j for
// k-step j; the bits 4i and 16 + 4i of a word hold the low and the high element of A register i.
// `steps` [n/16][groups][16] holds one group of one output: its scale in fp16 in the low half,
// -(128 + zero) in bf16 in the high half.  No header is included, so that nothing but NVRTC is
// needed to compile this.
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define GROUP 128

struct Words { u32 w[4]; };

__device__ __forceinline__ Words read_once(const uint4* p) {
  Words v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
  return v;
}

// Two codes of a word, at bits 0 and 16, as bf16 numbers code - zero: 0x4300 | code is 128 + code.
__device__ __forceinline__ u32 centred(u32 word, u32 minus_zero) {
  u32 codes, result;
  asm("lop3.b32 %0, %1, 0x000F000F, 0x43004300, 0xEA;" : "=r"(codes) : "r"(word));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(result) : "r"(codes), "r"(0x3F803F80u), "r"(minus_zero));
  return result;
}

__device__ __forceinline__ float scale_of(u32 step) {
  float scale;
  asm("cvt.f32.f16 %0, %1;" : "=f"(scale) : "h"((u16)(step & 0xFFFF)));
  return scale;
}

__device__ __forceinline__ u32 minus_zero_of(u32 step) { return __byte_perm(step, 0, 0x3232); }

__device__ __forceinline__ u16 to_bf16(float x) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// y [m, n] = x [m, k] times the weights.  W warps a block, each with groups of its own; T16 tiles
// of 16 outputs at a time; N8 blocks of 8 rows.  Blocks stay and take tile after tile, so that x
// is staged once.  gridDim.y parts of the groups are summed through `partial` [parts, m, n]; the
// last block to arrive at a tile (`arrived`, zero before and after) writes it.
template <int W, int T16, int N8>
__device__ __forceinline__ void product(const uint4* words, const u32* steps, const u16* x, u16* y,
                                        float* partial, u32* arrived, int m, int n, int k) {
  extern __shared__ __align__(16) u8 shared[];
  constexpr int OUT = T16 * 16, ROWS = N8 * 8;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quad = lane >> 2, pair = lane & 3;
  const int groups = (k + GROUP - 1) / GROUP, parts = gridDim.y;
  const int share = (groups + parts - 1) / parts, first = blockIdx.y * share;
  const int mine = min(share, groups - first), tiles = n / OUT;
  const int stride = share * GROUP + 8;  // 8 more, so that rows lie in different banks
  float* sums = reinterpret_cast<float*>(shared);
  u16* xs = reinterpret_cast<u16*>(shared + W * OUT * ROWS * 4);

  Words w[T16][2];
  u32 s0[T16], s1[T16];
  auto load = [&](int tile, int g) {
#pragma unroll
    for (int t = 0; t < T16; t++) {
      const size_t row = (size_t)tile * T16 + t;
      const uint4* p = words + (row * groups + first + g) * 64 + lane;
      w[t][0] = read_once(p);
      w[t][1] = read_once(p + 32);
      const u32* q = steps + (row * groups + first + g) * 16 + quad;
      s0[t] = __ldg(q);
      s1[t] = __ldg(q + 8);
    }
  };
  if (warp < mine) load(blockIdx.x, warp);

  for (int i = threadIdx.x; i < ROWS * (share * GROUP / 8); i += W * 32) {
    const int row = i / (share * GROUP / 8), c = i % (share * GROUP / 8) * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < m && first * GROUP + c < k)
      v = *reinterpret_cast<const uint4*>(x + (size_t)row * k + first * GROUP + c);
    *reinterpret_cast<uint4*>(xs + row * stride + c) = v;
  }
  __syncthreads();

  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float total[T16][N8][4];
#pragma unroll
    for (int t = 0; t < T16; t++)
#pragma unroll
      for (int b = 0; b < N8; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) total[t][b][i] = 0.f;

    for (int g = warp; g < mine; g += W) {
      float acc[T16][N8][4], f0[T16], f1[T16];
      u32 z0[T16], z1[T16], now[T16][8];
#pragma unroll
      for (int t = 0; t < T16; t++) {
#pragma unroll
        for (int b = 0; b < N8; b++)
#pragma unroll
          for (int i = 0; i < 4; i++) acc[t][b][i] = 0.f;
        z0[t] = minus_zero_of(s0[t]);
        z1[t] = minus_zero_of(s1[t]);
        f0[t] = scale_of(s0[t]);
        f1[t] = scale_of(s1[t]);
#pragma unroll
        for (int j = 0; j < 8; j++) now[t][j] = w[t][j >> 2].w[j & 3];
      }
      if (g + W < mine) load(tile, g + W);  // the next weights come while these are used
      else if (tile + gridDim.x < tiles) load(tile + gridDim.x, warp);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        u32 b[N8][2];
#pragma unroll
        for (int i = 0; i < N8; i++) {
          const u32* p = reinterpret_cast<const u32*>(
              xs + (i * 8 + quad) * stride + g * GROUP + j * 16 + pair * 2);
          b[i][0] = p[0];
          b[i][1] = p[4];
        }
#pragma unroll
        for (int t = 0; t < T16; t++) {
          const u32 a[4] = {centred(now[t][j], z0[t]), centred(now[t][j] >> 4, z1[t]),
                            centred(now[t][j] >> 8, z0[t]), centred(now[t][j] >> 12, z1[t])};
#pragma unroll
          for (int i = 0; i < N8; i++) mma(acc[t][i], a, b[i][0], b[i][1]);
        }
      }
#pragma unroll
      for (int t = 0; t < T16; t++)
#pragma unroll
        for (int b = 0; b < N8; b++) {
          total[t][b][0] += f0[t] * acc[t][b][0];
          total[t][b][1] += f0[t] * acc[t][b][1];
          total[t][b][2] += f1[t] * acc[t][b][2];
          total[t][b][3] += f1[t] * acc[t][b][3];
        }
    }

#pragma unroll
    for (int t = 0; t < T16; t++)
#pragma unroll
      for (int b = 0; b < N8; b++) {
        float* p = sums + warp * OUT * ROWS + (b * 8 + pair * 2) * OUT + t * 16 + quad;
        p[0] = total[t][b][0];
        p[OUT] = total[t][b][1];
        p[8] = total[t][b][2];
        p[OUT + 8] = total[t][b][3];
      }
    __syncthreads();
    for (int i = threadIdx.x; i < OUT * ROWS; i += W * 32) {
      float v = 0.f;
#pragma unroll
      for (int q = 0; q < W; q++) v += sums[q * OUT * ROWS + i];
      const int row = i / OUT, out = tile * OUT + i % OUT;
      if (row < m) {
        if (parts == 1) y[(size_t)row * n + out] = to_bf16(v);
        else partial[((size_t)blockIdx.y * m + row) * n + out] = v;
      }
    }
    if (parts > 1) {
      __shared__ u32 before;
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) before = atomicAdd(arrived + tile, 1u);
      __syncthreads();
      if (before == parts - 1) {
        if (threadIdx.x == 0) arrived[tile] = 0;
        __threadfence();
        for (int i = threadIdx.x; i < OUT * ROWS; i += W * 32) {
          const int row = i / OUT, out = tile * OUT + i % OUT;
          if (row < m) {
            float v = 0.f;
            for (int p = 0; p < parts; p++) v += __ldcg(partial + ((size_t)p * m + row) * n + out);
            y[(size_t)row * n + out] = to_bf16(v);
          }
        }
      }
    }
    __syncthreads();
  }
}

#define PRODUCT(W, T16, N8, BLOCKS)                                                            \
  extern "C" __global__ void __launch_bounds__(W * 32, BLOCKS) product_##W##_##T16##_##N8(     \
      const uint4* words, const u32* steps, const u16* x, u16* y, float* partial,              \
      u32* arrived, int m, int n, int k) {                                                     \
    product<W, T16, N8>(words, steps, x, y, partial, arrived, m, n, k);                        \
  }
PRODUCT(8, 2, 1, 3)
PRODUCT(8, 2, 2, 2)
PRODUCT(16, 1, 1, 2)
PRODUCT(16, 1, 2, 1)
PRODUCT(16, 2, 1, 1)
PRODUCT(16, 2, 2, 1)

// The weights [n, k] as plain numbers: a warp makes 16 outputs x 64 inputs.  Grid (n / 16,
// ceil(k / 256)), 128 threads.  8-bit numbers are divided by `row_scale` [n] first.
__device__ __forceinline__ void put(u16* to, float low, float high, float) {
  *reinterpret_cast<u32*>(to) = to_bf16(low) | (u32)to_bf16(high) << 16;
}

__device__ __forceinline__ void put(signed char* to, float low, float high, float per_scale) {
  int a, b;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(a) : "f"(low * per_scale));
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(b) : "f"(high * per_scale));
  *reinterpret_cast<u16*>(to) = (a & 0xFF) | (b & 0xFF) << 8;
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ void put(u8* to, float low, float high, float per_scale) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(r) : "f"(high * per_scale), "f"(low * per_scale));
  *reinterpret_cast<u16*>(to) = r;
}
#endif

__device__ __forceinline__ float low_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }

template <typename T>
__device__ __forceinline__ void dequantize(const uint4* words, const u32* steps,
                                           const float* row_scale, T* weights, int k) {
  __shared__ __align__(16) T tiles[4][16][64 + 16 / sizeof(T)];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quad = lane >> 2, pair = lane & 3;
  const int block = blockIdx.y * 4 + warp, groups = (k + GROUP - 1) / GROUP;
  if (block * 64 >= k) return;
  const size_t row = blockIdx.x;
  const Words w = read_once(words + (row * groups * 2 + block) * 32 + lane);
  T(*tile)[64 + 16 / sizeof(T)] = tiles[warp];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int out = quad + 8 * half;
    const u32 step = __ldg(steps + (row * groups + block / 2) * 16 + out);
    const u32 minus_zero = minus_zero_of(step);
    const float scale = scale_of(step), per_scale = row_scale ? 1.f / row_scale[row * 16 + out] : 1.f;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int i = half; i < 4; i += 2) {
        const u32 both = centred(w.w[j] >> 4 * i, minus_zero);
        put(&tile[out][j * 16 + pair * 2 + 8 * (i >> 1)], low_of(both) * scale,
            high_of(both) * scale, per_scale);
      }
  }
  __syncwarp();
  constexpr int CHUNKS = 64 * sizeof(T) / 16;
  for (int i = lane; i < 16 * CHUNKS; i += 32) {
    const int out = i / CHUNKS, c = i % CHUNKS * (16 / sizeof(T));
    *reinterpret_cast<uint4*>(weights + (row * 16 + out) * k + block * 64 + c) =
        *reinterpret_cast<const uint4*>(&tile[out][c]);
  }
}

extern "C" __global__ void __launch_bounds__(128) dequantize_bf16(
    const uint4* words, const u32* steps, const float* row_scale, u16* weights, int k) {
  dequantize<u16>(words, steps, nullptr, weights, k);
}

extern "C" __global__ void __launch_bounds__(128) dequantize_int8(
    const uint4* words, const u32* steps, const float* row_scale, signed char* weights, int k) {
  dequantize<signed char>(words, steps, row_scale, weights, k);
}

#if __CUDA_ARCH__ >= 890
extern "C" __global__ void __launch_bounds__(128) dequantize_fp8(
    const uint4* words, const u32* steps, const float* row_scale, u8* weights, int k) {
  dequantize<u8>(words, steps, row_scale, weights, k);
}
#endif
