#include "fusedsc/tuning/compiler/amd_code.h"

#include <elf.h>

#include <cstdint>
#include <cstring>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

/// Throws InvalidArgument where bytes are missing.
std::string_view piece(std::string_view bytes, std::uint64_t begin, std::uint64_t size) {
  check(begin <= bytes.size() && size <= bytes.size() - begin, "it is cut off");
  return bytes.substr(begin, size);
}

template <class T>
T read_at(std::string_view bytes, std::uint64_t begin) {
  T value;
  std::memcpy(&value, piece(bytes, begin, sizeof value).data(), sizeof value);
  return value;
}

/// The text of the note with the metadata, which is MessagePack.
std::string_view metadata_in(std::string_view code) {
  constexpr std::uint32_t kMetadata = 32;  // NT_AMDGPU_METADATA
  const auto whole = [](std::uint64_t size) { return (size + 3) / 4 * 4; };
  const auto header = read_at<Elf64_Ehdr>(code, 0);
  check(std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64, "it is no ELF");
  for (int i = 0; i < header.e_phnum; ++i) {
    const auto segment = read_at<Elf64_Phdr>(code, header.e_phoff + static_cast<std::uint64_t>(i) * sizeof(Elf64_Phdr));
    if (segment.p_type != PT_NOTE) continue;
    const std::string_view notes = piece(code, segment.p_offset, segment.p_filesz);
    for (std::uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
      const auto note = read_at<Elf64_Nhdr>(notes, at);
      const std::string_view name = piece(notes, at += sizeof note, note.n_namesz);
      const std::string_view text = piece(notes, at += whole(note.n_namesz), note.n_descsz);
      at += whole(note.n_descsz);
      if (note.n_type == kMetadata && name == std::string_view("AMDGPU\0", 7)) return text;
    }
  }
  throw InvalidArgument("it has no metadata of AMD's");
}

/// What is read of MessagePack: maps of text, numbers; the rest is stepped over.
class MessagePack {
 public:
  explicit MessagePack(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t map() { return count_of(0x80, 0x8f, 0xde, "a map"); }
  std::uint64_t array() { return count_of(0x90, 0x9f, 0xdc, "an array"); }

  std::string_view text() {
    const std::uint8_t tag = next();
    std::uint64_t size = 0;
    if (tag >= 0xa0 && tag <= 0xbf) size = tag & 0x1fu;
    else if (tag >= 0xd9 && tag <= 0xdb) size = number_of(1 << (tag - 0xd9));
    else throw InvalidArgument("there is no text where one is needed");
    return take(size);
  }

  int number() {
    const std::uint8_t tag = next();
    if (tag <= 0x7f) return tag;
    check(tag >= 0xcc && tag <= 0xcf, "there is no number where one is needed");
    return static_cast<int>(number_of(1 << (tag - 0xcc)));
  }

  void step_over(int depth = 0) {
    check(depth < 16, "it is nested too deeply");
    const std::uint8_t tag = static_cast<std::uint8_t>(piece(bytes_, 0, 1)[0]);
    if ((tag >= 0x80 && tag <= 0x8f) || tag == 0xde || tag == 0xdf) {
      for (std::uint64_t left = 2 * map(); left > 0; --left) step_over(depth + 1);
    } else if ((tag >= 0x90 && tag <= 0x9f) || tag == 0xdc || tag == 0xdd) {
      for (std::uint64_t left = array(); left > 0; --left) step_over(depth + 1);
    } else if ((tag >= 0xa0 && tag <= 0xbf) || (tag >= 0xd9 && tag <= 0xdb)) {
      text();
    } else {
      next();
      if (tag >= 0xcc && tag <= 0xd3) take(std::uint64_t{1} << (tag & 3));  // numbers of 8, 16, 32 and 64 bits
      else check(tag <= 0x7f || tag >= 0xe0 || tag == 0xc0 || tag == 0xc2 || tag == 0xc3, "it has an unknown kind");
    }
  }

 private:
  std::string_view take(std::uint64_t size) {
    const std::string_view taken = piece(bytes_, 0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::uint8_t next() { return static_cast<std::uint8_t>(take(1)[0]); }
  /// The highest byte first.
  std::uint64_t number_of(int bytes) {
    std::uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) number = number << 8 | next();
    return number;
  }
  std::uint64_t count_of(std::uint8_t first, std::uint8_t last, std::uint8_t of_16_bits, const char* what) {
    const std::uint8_t tag = next();
    if (tag >= first && tag <= last) return tag & 0xfu;
    check(tag == of_16_bits || tag == of_16_bits + 1, "there is not ", what, " where one is needed");
    return number_of(tag == of_16_bits ? 2 : 4);
  }

  std::string_view bytes_;
};

AmdKernelResources resources_in(MessagePack& metadata) {
  AmdKernelResources resources;
  for (std::uint64_t left = metadata.map(); left > 0; --left) {
    const std::string_view key = metadata.text();
    if (key == ".vgpr_count") resources.vgprs = metadata.number();
    else if (key == ".agpr_count") resources.agprs = metadata.number();
    else if (key == ".sgpr_count") resources.sgprs = metadata.number();
    else if (key == ".private_segment_fixed_size") resources.scratch_bytes = metadata.number();
    else metadata.step_over();
  }
  return resources;
}

}  // namespace

std::optional<AmdKernelResources> amd_kernel_resources(std::string_view code) {
  try {
    MessagePack metadata(metadata_in(code));
    for (std::uint64_t left = metadata.map(); left > 0; --left) {
      if (metadata.text() == "amdhsa.kernels") {
        if (metadata.array() == 0) return {};
        return resources_in(metadata);
      }
      metadata.step_over();
    }
  } catch (const InvalidArgument&) {
  }
  return {};
}

std::string printed(const AmdKernelResources& resources) {
  return std::to_string(resources.vgprs) + " VGPRs, " + std::to_string(resources.agprs) + " AGPRs, " +
         std::to_string(resources.sgprs) + " SGPRs, " + std::to_string(resources.scratch_bytes) +
         " bytes of scratch memory";
}

}  // namespace fusedsc::tuning
