// Levels: their text in model files, and the choice among them.
#include "levels.hpp"

#include <algorithm>
#include <cstdlib>

#include "cpu.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

constexpr const char* kVariable = "DHLO_TARGET";

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    std::string_view part = text.substr(0, end);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    parts.emplace_back(part);
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Names are equal whatever the order of their extensions.
std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts = split(name, '+');
  std::sort(parts.begin() + 1, parts.end());
  return parts;
}

std::string names_of(const std::vector<Level>& levels) {
  std::string names;
  for (const Level& level : levels) names += (names.empty() ? "'" : ", '") + level.name + "'";
  return names;
}

// By level, whether it may be taken.
std::vector<bool> allowed(const std::vector<Level>& levels, const std::string& label) {
  const char* given = std::getenv(kVariable);
  if (levels.size() == 1 || given == nullptr || *given == 0) return std::vector<bool>(levels.size(), true);
  std::vector<bool> may(levels.size(), false);
  for (const std::string& wanted : split(given, ',')) {
    bool found = wanted == "native";
    for (size_t i = 0; i < levels.size(); ++i) {
      if (wanted != "native" && parts_of(levels[i].name) != parts_of(wanted)) continue;
      may[i] = found = true;
    }
    if (!found)
      throw Error(DHLO_CPU, label + ": " + kVariable + " asks for '" + wanted + "'; the model has the levels " +
                                names_of(levels));
  }
  return may;
}

}  // namespace

std::vector<Level> levels_of(const dhlo_abi_model& abi) {
  std::vector<Level> levels;
  for (int64_t i = 0; i < abi.num_levels; ++i) {
    const dhlo_abi_level& level = abi.levels[i];
    levels.push_back(
        {level.name != nullptr ? level.name : "", level.cpu_features != nullptr ? level.cpu_features : ""});
  }
  return levels;
}

std::string write_levels(const std::vector<Level>& levels) {
  std::string text;
  for (const Level& level : levels) {
    if (&level != levels.data()) text += '\n';
    text += level.name.empty() ? level.features : level.name + ": " + level.features;
  }
  return text;
}

std::vector<Level> read_levels(std::string_view text, const std::string& label) {
  std::vector<Level> levels;
  for (;;) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos)
      levels.push_back({"", std::string(line)});
    else
      levels.push_back({std::string(line.substr(0, colon)), std::string(line.substr(colon + 2))});
    if (levels.size() > DHLO_ABI_MAX_LEVELS)
      throw Error(DHLO_FORMAT,
                  label + ": damaged features: more than " + std::to_string(DHLO_ABI_MAX_LEVELS) + " levels");
    if (end == std::string_view::npos) return levels;
    text.remove_prefix(end + 1);
  }
}

size_t choose_level(const std::vector<Level>& levels, const std::string& label) {
  const std::vector<bool> may = allowed(levels, label);
  std::string lacks;
  for (size_t i = levels.size(); i-- > 0;) {
    if (!may[i]) continue;
    const std::string missing = missing_cpu_features(levels[i].features);
    if (missing.empty()) return i;
    if (levels.size() > 1) lacks += (lacks.empty() ? "" : "; ") + missing + " for '" + levels[i].name + "'";
    if (levels.size() == 1)
      lacks = missing + "; the model was compiled for " + (levels[i].name.empty() ? "" : "'" + levels[i].name + "', ") +
              levels[i].features;
  }
  throw Error(DHLO_CPU, label + ": this processor lacks " + lacks);
}

}  // namespace dhlo
