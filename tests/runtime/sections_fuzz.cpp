// Reads damaged model files and weights files from memory: each is refused by an Error or read, and nothing is touched
// outside of it; nothing is executed.
//
//   sections_fuzz COUNT FILE...
//
// Prints how many were read and how many refused. Digests are made right again for most, so that what they guard is
// reached.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "model_file.hpp"
#include "sha256.hpp"
#include "support.hpp"

namespace {

using Bytes = std::vector<uint8_t>;

// Trailer and table again, with the digests of what is there.
void sign(Bytes* data, bool contents) {
  dhlo_trailer trailer;
  if (data->size() < sizeof trailer) return;
  uint8_t* end = data->data() + data->size() - sizeof trailer;
  std::memcpy(&trailer, end, sizeof trailer);
  trailer.file_bytes = data->size();
  const auto before = static_cast<uint64_t>(end - data->data());
  if (trailer.table_offset <= before) {
    const uint64_t bytes = before - trailer.table_offset;
    uint8_t* table = data->data() + trailer.table_offset;
    for (uint64_t at = 0; contents && at + sizeof(dhlo_section) <= bytes; at += sizeof(dhlo_section)) {
      dhlo_section row;
      std::memcpy(&row, table + at, sizeof row);
      if (row.offset > before || row.bytes > before - row.offset) continue;
      const dhlo::Digest digest =
          dhlo::section_digest(static_cast<int64_t>(row.bytes), 1,
                               [&](int64_t offset, int64_t) { return data->data() + row.offset + offset; });
      std::memcpy(row.digest, digest.data(), sizeof row.digest);
      std::memcpy(table + at, &row, sizeof row);
    }
    const dhlo::Digest digest = dhlo::sha256(table, bytes);
    std::memcpy(trailer.table_digest, digest.data(), sizeof trailer.table_digest);
  }
  std::memcpy(end, &trailer, sizeof trailer);
}

void change(Bytes* data, std::mt19937_64* random) {
  auto below = [&](uint64_t most) { return (*random)() % most; };
  // Near the end, where trailer and table are, or anywhere.
  const uint64_t near = std::min<uint64_t>(data->size(), 500);
  const uint64_t at = below(2) == 0 ? below(data->size()) : data->size() - 1 - below(near);
  const uint64_t width = std::min<uint64_t>(below(2) == 0 ? 4 : 8, data->size() - at);
  const uint64_t odd[] = {0, 1, 7, 39, 40, 64, 1u << 31, uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}};
  uint64_t value = 0;
  std::memcpy(&value, data->data() + at, width);
  switch (below(5)) {
    case 0: value = odd[below(sizeof odd / sizeof odd[0])]; break;
    case 1: value ^= uint64_t{1} << below(8 * width); break;
    case 2: value = (*random)(); break;
    case 3: value += below(2) == 0 ? 1 : ~uint64_t{0}; break;
    default: data->erase(data->begin() + static_cast<int64_t>(at)); return;
  }
  std::memcpy(data->data() + at, &value, width);
}

bool try_to_read(const Bytes& data, dhlo::Sections::Form form) {
  // Of exactly this size, so that a sanitizer sees what is read behind it.
  const std::unique_ptr<uint8_t[]> image(new uint8_t[data.size()]);
  std::memcpy(image.get(), data.data(), data.size());
  const dhlo::MemorySource source(image.get(), static_cast<int64_t>(data.size()), "file");
  try {
    const dhlo::Sections sections(source, form);
    sections.check_padding();
    if (form == dhlo::Sections::Form::kModel) {
      const dhlo::WeightsReference weights = sections.weights();
      if (weights.name.find('/') != std::string::npos) std::abort();
      sections.text(DHLO_SECTION_METADATA);
      return true;
    }
    sections.made_for(sections.digest(DHLO_SECTION_CONSTANTS));
    dhlo::Block block;
    sections.read(DHLO_SECTION_CONSTANTS, 1, true, &block);
    return true;
  } catch (const dhlo::Error&) {
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int count = std::atoi(argv[1]);
  int read = 0, tried = 0;
  for (int n = 2; n < argc; ++n) {
    std::ifstream file(argv[n], std::ios::binary);
    const Bytes whole{std::istreambuf_iterator<char>(file), {}};
    const bool model = try_to_read(whole, dhlo::Sections::Form::kModel);
    if (model == try_to_read(whole, dhlo::Sections::Form::kWeights)) return 1;
    std::mt19937_64 random(static_cast<unsigned>(n));
    for (int i = 0; i < count; ++i, ++tried) {
      Bytes data = whole;
      for (uint64_t changes = random() % 3 + 1; changes > 0; --changes) change(&data, &random);
      if (random() % 8 != 0) sign(&data, random() % 4 != 0);
      for (auto form : {dhlo::Sections::Form::kModel, dhlo::Sections::Form::kWeights})
        read += try_to_read(data, form) ? 1 : 0;
    }
  }
  std::printf("%d %d\n", read, tried - read);
  return 0;
}
