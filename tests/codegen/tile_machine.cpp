// Eight tiles and what AMX does with them, bit for bit as in Intel's Software Developer's Manual, volume 2 (LDTILECFG,
// TILELOADD, TDPBF16PS, TDPBSSD, ...), for kernels whose instructions are calls of these functions. What would trap is
// recorded and not done.
#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct Machine {
  bool configured = false;
  int rows[kTiles] = {}, row_bytes[kTiles] = {};
  alignas(64) uint8_t data[kTiles][kRows][kRowBytes] = {};
};

thread_local Machine machine;
std::atomic<const char*> fault{nullptr};
std::atomic<int64_t> products{0}, in_use{0};

bool refuse(const char* why) {
  const char* none = nullptr;
  fault.compare_exchange_strong(none, why);
  return false;
}

bool usable(int tile) {
  if (!machine.configured) return refuse("no configuration");
  return machine.rows[tile] > 0 || refuse("a tile without rows");
}

// Whether tiles of sums, left and right sides fit together.
bool fit(int sums, int left, int right) {
  const Machine& m = machine;
  if (!usable(sums) || !usable(left) || !usable(right)) return false;
  if (sums == left || left == right || sums == right) return refuse("a product of a tile with itself");
  if (m.row_bytes[sums] % 4 != 0 || m.row_bytes[left] % 4 != 0 || m.row_bytes[right] % 4 != 0)
    return refuse("rows that are no whole units");
  if (m.row_bytes[left] / 4 != m.rows[right] || m.rows[sums] != m.rows[left] || m.row_bytes[sums] != m.row_bytes[right])
    return refuse("tiles of sizes that don't match");
  ++products;
  return true;
}

template <class T>
T at(int tile, int row, int i) {
  T x;
  std::memcpy(&x, machine.data[tile][row] + i * sizeof(T), sizeof(T));
  return x;
}

// Writes the sums of a row; rows and bytes that a tile doesn't have become zeros.
template <class T>
void put_row(int tile, int row, const T* sums) {
  std::memset(machine.data[tile][row], 0, kRowBytes);
  std::memcpy(machine.data[tile][row], sums, static_cast<size_t>(machine.row_bytes[tile]));
}

void clear_below(int tile) {
  for (int r = machine.rows[tile]; r < kRows; ++r) std::memset(machine.data[tile][r], 0, kRowBytes);
}

float widened(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

__attribute__((target("fma"))) float multiply_add(float x, float y, float sum) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(x), _mm_set_ss(y), _mm_set_ss(sum)));
}

template <class Left, class Right>
void bytes(int sums, int left, int right) {
  if (!fit(sums, left, right)) return;
  const Machine& m = machine;
  for (int row = 0; row < m.rows[sums]; ++row) {
    uint32_t out[kRowBytes / 4] = {};
    for (int n = 0; n < m.row_bytes[sums] / 4; ++n) {
      out[n] = at<uint32_t>(sums, row, n);
      for (int k = 0; k < m.row_bytes[left] / 4; ++k)
        for (int i = 0; i < 4; ++i)
          out[n] += static_cast<uint32_t>(int32_t{at<Left>(left, row, 4 * k + i)} * at<Right>(right, k, 4 * n + i));
    }
    put_row(sums, row, out);
  }
  clear_below(sums);
}

}  // namespace

extern "C" {

void tile_ldtilecfg(const uint8_t* config) {
  Machine& m = machine;
  if (config[0] != 1) return void(refuse("a palette other than 1"));
  if (config[1] != 0) return void(refuse("a start row"));
  for (int i = 2; i < kRowBytes; ++i)
    if ((i < 16 || (i >= 32 && i < 48) || i >= 56) && config[i] != 0)
      return void(refuse("reserved bytes that aren't 0"));
  for (int t = 0; t < kTiles; ++t) {
    uint16_t width;
    std::memcpy(&width, config + 16 + 2 * t, sizeof width);
    const uint8_t rows = config[48 + t];
    if (rows > kRows || width > kRowBytes || (rows == 0) != (width == 0)) return void(refuse("a tile of no size"));
  }
  if (!m.configured) ++in_use;
  m.configured = true;
  for (int t = 0; t < kTiles; ++t) {
    uint16_t width;
    std::memcpy(&width, config + 16 + 2 * t, sizeof width);
    m.rows[t] = config[48 + t];
    m.row_bytes[t] = width;
  }
  std::memset(m.data, 0, sizeof m.data);
}

void tile_tilerelease() {
  if (machine.configured) --in_use;
  machine = Machine{};
}

void tile_tilezero(int8_t tile) {
  if (usable(tile)) std::memset(machine.data[tile], 0, sizeof machine.data[tile]);
}

void tile_tileloadd64(int8_t tile, const uint8_t* from, int64_t stride) {
  if (!usable(tile)) return;
  std::memset(machine.data[tile], 0, sizeof machine.data[tile]);
  for (int r = 0; r < machine.rows[tile]; ++r)
    std::memcpy(machine.data[tile][r], from + r * stride, static_cast<size_t>(machine.row_bytes[tile]));
}

// A hint alone tells it from the one above.
void tile_tileloaddt164(int8_t tile, const uint8_t* from, int64_t stride) { tile_tileloadd64(tile, from, stride); }

void tile_tilestored64(int8_t tile, uint8_t* to, int64_t stride) {
  if (!usable(tile)) return;
  for (int r = 0; r < machine.rows[tile]; ++r)
    std::memcpy(to + r * stride, machine.data[tile][r], static_cast<size_t>(machine.row_bytes[tile]));
}

// Even and odd k apart by multiply-adds in order of k, then their sum, then that to the tile's; rounded to nearest
// even, subnormal numbers read and written as 0.
void tile_tdpbf16ps(int8_t sums, int8_t left, int8_t right) {
  if (!fit(sums, left, right)) return;
  constexpr unsigned kNearestAndFlushing = 0x9fc0;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kNearestAndFlushing);
  const Machine& m = machine;
  for (int row = 0; row < m.rows[sums]; ++row) {
    float out[kRowBytes / 4] = {};
    for (int n = 0; n < m.row_bytes[sums] / 4; ++n) {
      float even = 0, odd = 0;
      for (int k = 0; k < m.row_bytes[left] / 4; ++k) {
        even = multiply_add(widened(at<uint16_t>(left, row, 2 * k)), widened(at<uint16_t>(right, k, 2 * n)), even);
        odd =
            multiply_add(widened(at<uint16_t>(left, row, 2 * k + 1)), widened(at<uint16_t>(right, k, 2 * n + 1)), odd);
      }
      out[n] = at<float>(sums, row, n) + (even + odd);
    }
    put_row(sums, row, out);
  }
  clear_below(sums);
  _mm_setcsr(before);
}

void tile_tdpbssd(int8_t sums, int8_t left, int8_t right) { bytes<int8_t, int8_t>(sums, left, right); }
void tile_tdpbusd(int8_t sums, int8_t left, int8_t right) { bytes<uint8_t, int8_t>(sums, left, right); }

// What happened since the last call: null, or the first thing that would have trapped; how many products there were, and
// how many threads have kept their configuration.
const char* tile_report(int64_t* count, int64_t* kept) {
  *count = products.exchange(0);
  *kept = in_use.load();
  return fault.exchange(nullptr);
}
}
