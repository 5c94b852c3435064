/* Which instruction sets this processor has, and the system saves the registers of. */
#include <string.h>

#include "matrix.h"

extern const InstructionSet scalar_set;

#if defined(__x86_64__)

#include <cpuid.h>

extern const InstructionSet avx2_set, avxvnni_set, avx512vnni_set;
bool has_avx2(void);
bool has_avxvnni(void);
bool has_avx512vnni(void);

typedef struct {
    unsigned eax, ebx, ecx, edx;
} Leaf;

static Leaf read_leaf(unsigned leaf, unsigned part) {
    Leaf found = {0, 0, 0, 0};
    __get_cpuid_count(leaf, part, &found.eax, &found.ebx, &found.ecx, &found.edx);
    return found;
}

static bool has_bit(unsigned bits, int at) { return bits >> at & 1; }

/* All of `states` are saved by the system when it switches threads. */
static bool saves(unsigned states) {
    unsigned low = 0, high = 0;
    if (!has_bit(read_leaf(1, 0).ecx, 27)) return false; /* OSXSAVE: xgetbv exists */
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & states) == states;
}

enum { STATES_256 = 0x06, STATES_512 = 0xe6 };

bool has_avx2(void) {
    unsigned basic = read_leaf(1, 0).ecx;
    bool fma_avx_f16c = has_bit(basic, 12) && has_bit(basic, 28) && has_bit(basic, 29);
    return fma_avx_f16c && has_bit(read_leaf(7, 0).ebx, 5) && saves(STATES_256);
}

bool has_avxvnni(void) { return has_avx2() && read_leaf(7, 0).eax >= 1 && has_bit(read_leaf(7, 1).eax, 4); }

bool has_avx512vnni(void) {
    Leaf leaf = read_leaf(7, 0);
    bool f_dq_bw_vl = has_bit(leaf.ebx, 16) && has_bit(leaf.ebx, 17) && has_bit(leaf.ebx, 30) && has_bit(leaf.ebx, 31);
    return has_avx2() && f_dq_bw_vl && has_bit(leaf.ecx, 11) && saves(STATES_512);
}

const InstructionSet *const instruction_sets[] = {&avx512vnni_set, &avxvnni_set, &avx2_set, &scalar_set, NULL};

#elif defined(__aarch64__)

extern const InstructionSet neon_set, neon_i8mm_set;
bool has_neon(void);
bool has_i8mm(void);

#if defined(__linux__)
#include <sys/auxv.h>
bool has_neon(void) { return getauxval(AT_HWCAP) >> 20 & 1; }                    /* ASIMDDP */
bool has_i8mm(void) { return has_neon() && getauxval(AT_HWCAP2) >> 13 & 1; }     /* I8MM */
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static bool has_feature(const char *name) {
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname(name, &found, &size, NULL, 0) == 0 && found;
}
bool has_neon(void) { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm(void) { return has_neon() && has_feature("hw.optional.arm.FEAT_I8MM"); }
#elif defined(_WIN32)
#include <windows.h>
bool has_neon(void) { return IsProcessorFeaturePresent(43); }                    /* ARM_V82_DP */
bool has_i8mm(void) { return has_neon() && IsProcessorFeaturePresent(66); }      /* ARM_V82_I8MM */
#else
bool has_neon(void) { return false; }
bool has_i8mm(void) { return false; }
#endif

const InstructionSet *const instruction_sets[] = {&neon_i8mm_set, &neon_set, &scalar_set, NULL};

#else
const InstructionSet *const instruction_sets[] = {&scalar_set, NULL};
#endif

const InstructionSet *find_instruction_set(const char *name) {
    for (const InstructionSet *const *set = instruction_sets; *set; set++)
        if (strcmp((*set)->name, name) == 0) return *set;
    return NULL;
}

const InstructionSet *best_instruction_set(void) {
    for (const InstructionSet *const *set = instruction_sets; *set != &scalar_set; set++)
        if ((*set)->usable()) return *set;
    return NULL;
}
