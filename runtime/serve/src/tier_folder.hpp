// Blocks in files of a folder, some in each, which processes may share and which outlives them.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tier_file.hpp"

namespace dhlo::serve {

// One thread uses it. Files are written under another name first; the file that was read or written longest ago is
// removed for others. Throws std::bad_alloc alone.
class TierFolder {
 public:
  TierFolder(std::string path, int64_t most_bytes, TierLayout layout);

  // Blocks as one file. False if it couldn't be written.
  bool write(const StagedBlock* blocks, size_t count);
  bool has(const BlockName& name) const { return index_.count(name) != 0; }
  // Whether the block is there and what its digest says. One that is damaged is removed with its file.
  bool read(const BlockName& name, uint8_t* out);
  // Looks for files that came or went, if there may be any.
  void scan();
  // Marks what was read since the last time as used, what was read first most recently: it begins what follows.
  void mark_used();

  int64_t bytes() const { return bytes_; }  // of all files, as of the last look
  int64_t blocks() const { return static_cast<int64_t>(index_.size()); }
  int64_t damaged() const { return damaged_; }

 private:
  struct Place {
    std::string file;
    int64_t offset = 0;
    Digest digest{};
  };
  struct Listed {
    std::string file;
    int64_t bytes = 0, used_ns = 0;
  };

  std::vector<Listed> list();
  bool make_room(int64_t bytes);
  void learn(const std::string& file, int64_t bytes);
  void forget(const std::string& file);
  void discard(const std::string& file);
  std::string in_folder(const std::string& file) const { return path_ + "/" + file; }

  const std::string path_;
  const int64_t most_bytes_;
  const TierLayout layout_;
  std::unordered_map<BlockName, Place, BlockNameHash> index_;
  std::unordered_map<std::string, std::vector<BlockName>> files_;  // that were looked at
  std::unordered_set<std::string> bad_;                            // damaged, and could not be removed
  std::vector<std::string> used_;
  int64_t scanned_ns_ = -1;  // when the folder had changed last, at the last look
  int64_t bytes_ = 0, damaged_ = 0;
};

}  // namespace dhlo::serve
