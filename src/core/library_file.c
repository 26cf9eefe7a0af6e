/* ELF files of shared libraries: whether their tables agree with each other and with the file's size. */
#include "core/library_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef ElfW(Ehdr) elf_head;
typedef ElfW(Phdr) elf_segment;
typedef ElfW(Shdr) elf_section;

typedef struct elf_file {
    int descriptor;
    uint64_t bytes;
    elf_head head;
} elf_file;

static bool within(uint64_t begin, uint64_t bytes, uint64_t end)
{
    return begin <= end && bytes <= end - begin;
}

static bool read_at(const elf_file *file, uint64_t offset, void *out, size_t bytes)
{
    return within(offset, bytes, file->bytes) && pread(file->descriptor, out, bytes, (off_t)offset) == (ssize_t)bytes;
}

static bool segment_at(const elf_file *file, int index, elf_segment *out)
{
    return read_at(file, file->head.e_phoff + (uint64_t)index * sizeof *out, out, sizeof *out);
}

static bool section_at(const elf_file *file, int index, elf_section *out)
{
    return read_at(file, file->head.e_shoff + (uint64_t)index * sizeof *out, out, sizeof *out);
}

/* The header that this code was loaded with tells which machine this is. */
static const elf_head *own_head(void)
{
    Dl_info own;
    static const char here;
    if (dladdr(&here, &own) == 0 || !own.dli_fbase || memcmp(own.dli_fbase, ELFMAG, SELFMAG) != 0)
        return NULL;
    return own.dli_fbase;
}

static const char *check_head(elf_file *file)
{
    elf_head *head = &file->head;
    if (!read_at(file, 0, head, sizeof *head) || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0)
        return "this is no library: it does not begin as an ELF file";
    const elf_head *own = own_head();
    if (own && (head->e_ident[EI_CLASS] != own->e_ident[EI_CLASS] || head->e_ident[EI_DATA] != own->e_ident[EI_DATA] ||
                head->e_machine != own->e_machine))
        return "the library is for another machine, or damaged";
    if (head->e_type != ET_DYN)
        return "the file is no shared library, or damaged";
    if (head->e_phentsize != sizeof(elf_segment) || head->e_phnum == 0 ||
        !within(head->e_phoff, (uint64_t)head->e_phnum * sizeof(elf_segment), file->bytes))
        return "the file is damaged: its program headers are not in it";
    if (head->e_shnum > 0 && (head->e_shentsize != sizeof(elf_section) ||
                              !within(head->e_shoff, (uint64_t)head->e_shnum * sizeof(elf_section), file->bytes)))
        return "the file is damaged, or not complete: its section headers are not in it";
    return NULL;
}

/* Loaded segments lie in the file, and follow each other in memory. */
static const char *check_loaded(const elf_file *file)
{
    elf_segment segment;
    uint64_t end = 0;
    for (int i = 0; i < file->head.e_phnum; i++) {
        if (!segment_at(file, i, &segment) || segment.p_type != PT_LOAD)
            continue;
        if (!within(segment.p_offset, segment.p_filesz, file->bytes))
            return "the file is damaged, or not complete: a segment ends behind it";
        if (segment.p_filesz > segment.p_memsz || segment.p_vaddr < end ||
            !within(segment.p_vaddr, segment.p_memsz, PTRDIFF_MAX) || !(segment.p_flags & PF_R))
            return "the file is damaged: its segments do not fit each other";
        end = segment.p_vaddr + segment.p_memsz;
    }
    return end > 0 ? NULL : "the file is damaged: it has no segments to load";
}

typedef struct elf_piece {
    uint64_t address, bytes;
    bool in_file;
    uint64_t offset; /* where it is in the file */
    uint32_t flags;  /* its segment needs */
} elf_piece;

/* Whether the piece lies in one loaded segment. */
static bool is_loaded(const elf_file *file, const elf_piece *piece)
{
    elf_segment segment;
    for (int i = 0; i < file->head.e_phnum; i++) {
        if (!segment_at(file, i, &segment) || segment.p_type != PT_LOAD ||
            (segment.p_flags & piece->flags) != piece->flags)
            continue;
        uint64_t size = piece->in_file ? segment.p_filesz : segment.p_memsz, place = piece->address - segment.p_vaddr;
        if (piece->address >= segment.p_vaddr && within(place, piece->bytes, size) &&
            (!piece->in_file || piece->offset - segment.p_offset == place))
            return true;
    }
    return false;
}

/* The other segments lie in loaded ones: loaders and unwinders read there. */
static const char *check_segments(const elf_file *file)
{
    elf_segment segment;
    for (int i = 0; i < file->head.e_phnum; i++) {
        if (!segment_at(file, i, &segment) || segment.p_type == PT_LOAD || segment.p_type == PT_NULL ||
            segment.p_type == PT_GNU_STACK)
            continue;
        bool relro = segment.p_type == PT_GNU_RELRO, tls = segment.p_type == PT_TLS;
        const elf_piece piece = {.address = segment.p_vaddr,
                                 .bytes = relro ? segment.p_memsz : segment.p_filesz,
                                 .in_file = !relro,
                                 .offset = segment.p_offset,
                                 .flags = relro || tls || segment.p_type == PT_DYNAMIC ? PF_W : 0};
        if ((!is_loaded(file, &piece) && !(tls && piece.bytes == 0)) ||
            (tls ? segment.p_memsz < segment.p_filesz || segment.p_align > 1 << 20
                 : !relro && segment.p_memsz != segment.p_filesz))
            return "the file is damaged: a segment is not where it should be";
    }
    return NULL;
}

/* The dynamic section is that of the program headers, and what becomes read-only has no variables in it. */
static bool fits_segments(const elf_file *file, const elf_section *section)
{
    elf_segment segment;
    bool found = section->sh_type != SHT_DYNAMIC;
    for (int i = 0; i < file->head.e_phnum; i++) {
        if (!segment_at(file, i, &segment))
            return false;
        if (section->sh_type == SHT_DYNAMIC && segment.p_type == PT_DYNAMIC)
            found = segment.p_vaddr == section->sh_addr && segment.p_memsz == section->sh_size;
        uint64_t end = (segment.p_vaddr + segment.p_memsz) / 4096 * 4096;
        if (segment.p_type == PT_GNU_RELRO && section->sh_type == SHT_NOBITS && !(section->sh_flags & SHF_TLS) &&
            section->sh_addr < end && section->sh_addr + section->sh_size > segment.p_vaddr)
            return false;
    }
    return found;
}

/* Sections that are loaded lie in segments that may be used as they must be. Files without sections are taken. */
static const char *check_sections(const elf_file *file)
{
    elf_section section;
    for (int i = 0; i < file->head.e_shnum; i++) {
        if (!section_at(file, i, &section) || !(section.sh_flags & SHF_ALLOC) || section.sh_size == 0)
            continue;
        bool nothing = section.sh_type == SHT_NOBITS, tls = section.sh_flags & SHF_TLS;
        const elf_piece piece = {.address = section.sh_addr,
                                 .bytes = section.sh_size,
                                 .in_file = !nothing,
                                 .offset = section.sh_offset,
                                 .flags = (section.sh_flags & SHF_WRITE ? PF_W : 0) |
                                          (section.sh_flags & SHF_EXECINSTR ? PF_X : 0)};
        if ((!(nothing && tls) && !is_loaded(file, &piece)) || !fits_segments(file, &section))
            return "the file is damaged: its sections and segments do not fit each other";
    }
    return NULL;
}

const char *tpi_library_file_damage(const char *path)
{
    struct stat about;
    elf_file file = {.descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.descriptor < 0)
        return NULL;
    const char *damage = "this is no library: it is no file";
    if (fstat(file.descriptor, &about) == 0 && S_ISREG(about.st_mode)) {
        file.bytes = (uint64_t)about.st_size;
        damage = check_head(&file);
        if (!damage)
            damage = check_loaded(&file);
        if (!damage)
            damage = check_segments(&file);
        if (!damage)
            damage = check_sections(&file);
    }
    close(file.descriptor);
    return damage;
}
