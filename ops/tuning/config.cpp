#include "fusedsc/tuning/config.h"

#include <algorithm>
#include <charconv>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

constexpr std::array<const char*, kKnobs> kWords = {
    "channels",   "columns",     "rows",  "images",         "image_parts", "box",    "runs",   "box_runs", "products",
    "segments",   "grain",       "lanes", "groups",         "warps",       "stages", "splits", "cluster",  "strips",
    "tile_bytes", "whole_bytes", "depth", "smem_transpose", "wave_w",      "wave_c", "wave_n", "repeat_w", "repeat_c",
    "block_n",    "group_c",     "ahead", "vectors"};

std::string all_words() {
  std::string words;
  for (const char* word : kWords) words += words.empty() ? word : std::string(", ") + word;
  return words;
}

}  // namespace

std::string printed(const Config& config) {
  std::string text;
  for (std::size_t i = 0; i < kKnobs; ++i) {
    if (config.values[i] == 0) continue;
    if (!text.empty()) text += ' ';
    text += std::string(kWords[i]) + '=' + std::to_string(config.values[i]);
  }
  return text;
}

Config parsed(std::string_view text) {
  Config config;
  while (true) {
    const std::size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return config;
    text.remove_prefix(begin);
    const std::string_view entry = text.substr(0, text.find(' '));
    text.remove_prefix(entry.size());
    const std::size_t equals = entry.find('=');
    const std::string_view word = entry.substr(0, equals);
    const auto* found = std::find(kWords.begin(), kWords.end(), word);
    check(found != kWords.end(), "config: \"", word, "\" is no word of one; there are ", all_words());
    std::int32_t value = 0;
    const char* const end = entry.data() + entry.size();
    const char* const digits = equals == std::string_view::npos ? end : entry.data() + equals + 1;
    const auto [stop, error] = std::from_chars(digits, end, value);
    check(digits != end && error == std::errc() && stop == end && value >= 0, "config: \"", entry,
          "\" is not a word, an equals sign and a number, as in \"rows=4\"");
    config.values[static_cast<std::size_t>(found - kWords.begin())] = value;
  }
}

}  // namespace fusedsc::tuning
