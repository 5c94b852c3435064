/* Memory for packed weights, cut from large pieces that the system may back with huge pages: without them a pass spends
   a tenth of its time on looking up addresses. A piece goes back when nothing in it is used any more. */
#if !defined(_GNU_SOURCE) && !defined(_WIN32)
#define _GNU_SOURCE /* madvise */
#endif

#include <stdatomic.h>
#include <stdlib.h>

#include "matrix.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

enum { HUGE_PAGE = 2 << 20, LINE = 64, AHEAD = 4096 /* prefetches run past the end */ };
static const size_t PIECE = (size_t)64 << 20;

typedef struct Piece {
    uint8_t *memory;
    size_t size, used, in_use; /* bytes, bytes, allocations */
    struct Piece *next;
} Piece;

static Piece *pieces;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void lock(void) {
    while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {}
}

static void unlock(void) { atomic_flag_clear_explicit(&busy, memory_order_release); }

static size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

#if defined(_WIN32)
static void *map(size_t size) { return VirtualAlloc(NULL, size, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE); }
static void unmap(void *memory, size_t size) {
    (void)size;
    VirtualFree(memory, 0, MEM_RELEASE);
}
#else
static void unmap(void *memory, size_t size) { munmap(memory, size); }

/* Aligned to huge pages: what lies outside of the aligned part goes back at once. */
static void *map(size_t size) {
    uint8_t *whole = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) return NULL;
    uint8_t *aligned = (uint8_t *)round_up((uintptr_t)whole, HUGE_PAGE);
    if (aligned > whole) munmap(whole, aligned - whole);
    if (aligned < whole + HUGE_PAGE) munmap(aligned + size, whole + HUGE_PAGE - aligned);
#ifdef MADV_HUGEPAGE
    madvise(aligned, size, MADV_HUGEPAGE);
#endif
    return aligned;
}
#endif

static Piece *add_piece(size_t bytes) {
    Piece *piece = calloc(1, sizeof *piece);
    if (!piece) return NULL;
    piece->size = round_up(bytes > PIECE ? bytes : PIECE, HUGE_PAGE);
    piece->memory = map(piece->size);
    if (!piece->memory) {
        free(piece);
        return NULL;
    }
    piece->next = pieces;
    return pieces = piece;
}

void *take_memory(size_t bytes) {
    size_t size = round_up(bytes + AHEAD, LINE);
    if (size < bytes) return NULL;
    lock();
    Piece *piece = pieces;
    while (piece && piece->size - piece->used < size) piece = piece->next;
    if (!piece) piece = add_piece(size);
    void *memory = NULL;
    if (piece) {
        memory = piece->memory + piece->used;
        piece->used += size;
        piece->in_use++;
    }
    unlock();
    return memory;
}

void release_memory(void *memory) {
    if (!memory) return;
    lock();
    for (Piece **place = &pieces; *place; place = &(*place)->next) {
        Piece *piece = *place;
        if ((uint8_t *)memory < piece->memory || (uint8_t *)memory >= piece->memory + piece->size) continue;
        if (--piece->in_use == 0) {
            *place = piece->next;
            unmap(piece->memory, piece->size);
            free(piece);
        }
        break;
    }
    unlock();
}

#if defined(__linux__)
/* Whether every page that is there belongs to a file and is as it is in the file: /proc/self/pagemap has a number for
   each page, with bits that tell whether it is in memory (63), swapped out (62), or a page of a file or of shared
   memory (61). A private page loses the last bit as soon as it is written to. */
static bool are_file_pages(uintptr_t first, size_t count, size_t page) {
    uint64_t facts[512];
    int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    bool all = file >= 0;
    for (size_t done = 0; all && done < count;) {
        size_t some = count - done < 512 ? count - done : 512;
        off_t at = (off_t)((first / page + done) * sizeof *facts);
        all = pread(file, facts, some * sizeof *facts, at) == (ssize_t)(some * sizeof *facts);
        for (size_t which = 0; all && which < some; which++)
            all = !(facts[which] >> 62 & 1) && (!(facts[which] >> 63) || (facts[which] >> 61 & 1));
        done += some;
    }
    if (file >= 0) close(file);
    return all;
}

void forget_file_pages(const void *memory, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = round_up((uintptr_t)memory, page), end = ((uintptr_t)memory + bytes) / page * page;
    if (end > first && are_file_pages(first, (end - first) / page, page))
        madvise((void *)first, end - first, MADV_DONTNEED);
}
#else
void forget_file_pages(const void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
}
#endif
