// Maps damaged images: each is refused by an Error or mapped, and nothing is touched outside of it; nothing is executed.
//
//   elf_fuzz IMAGE COUNT [SEED]
//
// Prints how many were mapped and how many refused.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "code.hpp"
#include "elf_image.hpp"
#include "model_file.hpp"
#include "support.hpp"

namespace {

using Bytes = std::vector<uint8_t>;

class Mutator {
 public:
  Mutator(const Bytes& whole, unsigned seed) : whole_(whole), random_(seed) {
    Elf64_Ehdr header;
    std::memcpy(&header, whole.data(), sizeof header);
    places_.push_back({0, sizeof header});
    places_.push_back({header.e_phoff, header.e_phnum * uint64_t{sizeof(Elf64_Phdr)}});
    for (unsigned i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr section;
      std::memcpy(&section, whole.data() + header.e_shoff + i * sizeof section, sizeof section);
      const std::set<uint32_t> tables = {SHT_DYNAMIC, SHT_DYNSYM, SHT_RELA,       SHT_GNU_HASH,
                                         SHT_STRTAB,  SHT_SYMTAB, SHT_INIT_ARRAY, SHT_FINI_ARRAY};
      if (tables.count(section.sh_type) != 0 && section.sh_size > 0)
        places_.push_back({section.sh_offset, section.sh_size});
    }
    places_.push_back({header.e_shoff, header.e_shnum * uint64_t{sizeof(Elf64_Shdr)}});
  }

  Bytes next() {
    Bytes data = whole_;
    for (uint64_t n = below(3) + 1; n > 0; --n) change(&data);
    if (below(10) == 0) data.resize(sizeof(Elf64_Ehdr) + below(data.size() - sizeof(Elf64_Ehdr)));
    return data;
  }

 private:
  struct Place {
    uint64_t offset, bytes;
  };
  uint64_t below(uint64_t most) { return random_() % most; }

  void change(Bytes* data) {
    const Place& place = places_[below(places_.size())];
    const uint64_t aligned = below(4) == 0 ? 1 : 8;
    const uint64_t at = place.offset + below(place.bytes) / aligned * aligned;
    const uint64_t width = std::min<uint64_t>(below(3) == 0 ? 4 : 8, data->size() - at);
    uint64_t value = 0;
    std::memcpy(&value, data->data() + at, width);
    const uint64_t odd[] = {0,
                            1,
                            7,
                            8,
                            24,
                            0x1000,
                            0xfff,
                            1u << 31,
                            uint64_t{1} << 32,
                            uint64_t{1} << 62,
                            uint64_t{1} << 63,
                            ~uint64_t{0},
                            ~uint64_t{7},
                            whole_.size(),
                            whole_.size() - 1};
    switch (below(4)) {
      case 0: value = odd[below(sizeof odd / sizeof odd[0])]; break;
      case 1: value += below(2) == 0 ? odd[below(5)] : ~below(32); break;
      case 2: value ^= uint64_t{1} << below(64); break;
      default: value = random_(); break;
    }
    std::memcpy(data->data() + at, &value, width);
  }

  const Bytes& whole_;
  std::mt19937_64 random_;
  std::vector<Place> places_;
};

bool try_to_map(const Bytes& data) {
  // Of exactly this size, so that a sanitizer sees what is read behind it.
  const std::unique_ptr<uint8_t[]> image(new uint8_t[data.size()]);
  std::memcpy(image.get(), data.data(), data.size());
  const auto bytes = static_cast<int64_t>(data.size());
  try {
    dhlo::check_elf(image.get(), bytes, "image");
    dhlo::ElfImage::functions_of(image.get(), bytes);
    dhlo::ElfImage mapped;
    mapped.map(image.get(), bytes, "image");
    mapped.relocate([](const char* name) -> const void* { return name; });  // never called
    const bool found = mapped.find(DHLO_ABI_SYMBOL, sizeof(dhlo_abi_model)) != nullptr;
    mapped.constructors();
    mapped.destructors();
    return found;
  } catch (const dhlo::Error&) {
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const Bytes whole{std::istreambuf_iterator<char>(file), {}};
  if (whole.size() < sizeof(Elf64_Ehdr) || !try_to_map(whole)) {
    std::fprintf(stderr, "the whole image isn't mapped\n");
    return 1;
  }
  Mutator mutator(whole, argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 1);
  int mapped = 0;
  const int count = std::atoi(argv[2]);
  for (int i = 0; i < count; ++i) mapped += try_to_map(mutator.next()) ? 1 : 0;
  std::printf("%d %d\n", mapped, count - mapped);
  return 0;
}
