// Small texts that the runtime keeps for later processes, in files of the user's that can be made again.
#pragma once

#include <string>
#include <string_view>

namespace dhlo {

// DHLO_CACHE_DIR, else the user's folder for what can be made again; empty if there is none.
std::string cache_folder();

// The first 4096 bytes of a file, "" if it can't be read; of anybody's.
std::string start_of(const char* path);
// The same of a file that nobody but this user and root can have written; "" for others.
std::string read_cache_file(const std::string& path);
// Puts the file there as a whole, or not at all; makes its folders. Does nothing for an empty path.
void write_cache_file(const std::string& path, std::string_view text);

// SHA-256 of a text, in hexadecimal digits; and a text with a last line that has its own.
std::string digest_of(std::string_view text);
std::string with_digest(const std::string& text);

}  // namespace dhlo
