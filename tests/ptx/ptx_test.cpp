// SPDX-License-Identifier: Apache-2.0
//
// The interpreter of PTX: what instructions do, and what it finds wrong. Kernels are written here
// by hand, but for the last tests, which damage one that nvcc made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/emulation/gpu_kernels.h"
#include "tests/emulation/kernel_test.h"
#include "tests/ptx/kernels.h"
#include "tests/ptx/library.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/program.h"

namespace zerobox::ptx {
namespace {

using testing::HasSubstr;

constexpr char kHeader[] = R"(
.version 9.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.global .align 4 .b8 table[8] = {1, 0, 0, 0, 7, 1, 0, 0};
.func (.param .b32 result) twice(.param .b32 x) {
  .reg .b32 %r<2>;
  ld.param.u32 %r1, [x+0];
  add.s32 %r1, %r1, %r1;
  st.param.b32 [result+0], %r1;
  ret;
}
)";
// Threads begin with the addresses of out in %rd1, of in in %rd2, and of out[thread] in %rd3; and
// the thread's number in %r1.
constexpr char kBegin[] = R"(
.visible .entry kernel(.param .u64 out, .param .u64 in, .param .align 8 .b8 pair[16])
.maxntid 64, 1, 1
{
  .reg .pred %p<9>;
  .reg .b16 %rs<9>;
  .reg .b32 %r<40>;
  .reg .f32 %f<20>;
  .reg .b64 %rd<20>;
  .reg .f64 %fd<9>;
  .shared .align 16 .b8 shared[1024];
  .local .align 8 .b8 local[16];
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [in];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd3, %rd3, %rd1;
)";

struct Pair {
  int64_t first;
  float second, third;
};

struct Result {
  absl::Status status;
  std::vector<uint32_t> out;
};

template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Runs a kernel with this body on `threads` threads. `out` and `in` have an element for each; in[i]
// is 100 + i.
Result RunBody(const std::string& body, uint32_t threads = 1, size_t dynamic_bytes = 0) {
  Result result;
  auto module = Module::Parse(absl::StrCat(kHeader, kBegin, body, "\n  ret;\n}\n"));
  if (!module.ok()) return {module.status(), {}};
  const auto kernel = (*module)->Find("kernel");
  if (!kernel.ok()) return {kernel.status(), {}};
  std::vector<uint32_t> in;
  for (uint32_t i = 0; i < threads; ++i) in.push_back(100 + i);
  result.out.resize(threads);
  GlobalMemory memory;
  memory.Add(in.data(), 4 * in.size());
  memory.Add(result.out.data(), 4 * result.out.size());
  for (const auto& [name, bytes] : (*module)->variables()) memory.Add(bytes.data(), bytes.size());
  result.status =
      Run(**kernel,
          {.block = {threads},
           .dynamic_shared_bytes = dynamic_bytes,
           .arguments = {Bytes(result.out.data()), Bytes(in.data()), Bytes(Pair{-7, 2.5f, 0.25f})}},
          memory);
  return result;
}

constexpr char kStore[] = "\n  st.global.u32 [%rd3], %r2;";

// What the body leaves in %r2.
uint32_t Value(const std::string& body) {
  const Result result = RunBody(body + kStore);
  EXPECT_TRUE(result.status.ok()) << result.status;
  return result.out.empty() ? 0 : result.out[0];
}
// What it leaves in %f2.
float Float(const std::string& body) {
  return std::bit_cast<float>(Value(body + "\n  mov.b32 %r2, %f2;"));
}
std::string Error(const std::string& body, uint32_t threads = 1) {
  return std::string(RunBody(body, threads).status.message());
}

//---- What instructions do -----------------------------------------------------------------------

TEST(Ptx, MultipliesIntegersToBothHalves) {
  EXPECT_EQ(Value("mul.hi.u32 %r2, 0x80000001, 6;"), 3u);
  EXPECT_EQ(Value("mul.hi.s32 %r2, -2147483647, 6;"), static_cast<uint32_t>(-3));
  EXPECT_EQ(Value("mul.wide.s32 %rd4, -3, 5; cvt.u32.u64 %r2, %rd4;"), static_cast<uint32_t>(-15));
  EXPECT_EQ(Value("mad.lo.s32 %r2, 3, 5, -20;"), static_cast<uint32_t>(-5));
  EXPECT_EQ(Value("mov.u64 %rd4, 0x100000001; mul.hi.u64 %rd5, %rd4, %rd4; cvt.u32.u64 %r2, %rd5;"),
            1u);
}

TEST(Ptx, CarriesFromOneWordToTheNext) {
  EXPECT_EQ(Value("add.cc.u32 %r3, 0xffffffff, 2; addc.u32 %r2, 10, 20;"), 31u);
  EXPECT_EQ(Value("sub.cc.u32 %r3, 1, 2; subc.u32 %r2, 10, 4;"), 5u);
  EXPECT_EQ(Value("mad.lo.cc.u32 %r3, 0x10000, 0xffff, 0x10000; madc.hi.u32 %r2, 0x10000, 0x30000, "
                  "1;"),
            5u);
}

TEST(Ptx, ShiftsAndMovesBits) {
  EXPECT_EQ(Value("shl.b32 %r2, 1, 32;"), 0u);
  EXPECT_EQ(Value("shr.s32 %r2, -8, 40;"), 0xffffffffu);
  EXPECT_EQ(Value("shr.u32 %r2, 0x80000000, 31;"), 1u);
  EXPECT_EQ(Value("shf.l.wrap.b32 %r2, 0x80000001, 0x00000003, 1;"), 7u);
  EXPECT_EQ(Value("bfi.b32 %r2, 0xff, 0x0, 4, 8;"), 0xff0u);
  EXPECT_EQ(Value("bfe.u32 %r2, 0xabcd, 4, 8;"), 0xbcu);
  EXPECT_EQ(Value("bfe.s32 %r2, 0xabcd, 4, 8;"), 0xffffffbcu);
  EXPECT_EQ(Value("prmt.b32 %r2, 0x44332211, 0x88776655, 0x8740;"), 0x00885511u);
  EXPECT_EQ(Value("lop3.b32 %r2, 0xf0, 0xcc, 0xaa, 0x96;"), 0xf0u ^ 0xccu ^ 0xaau);
  EXPECT_EQ(Value("popc.b32 %r2, 0xf0f;"), 8u);
  EXPECT_EQ(Value("clz.b32 %r2, 0x10000;"), 15u);
  EXPECT_EQ(Value("mov.b64 %rd4, {0x5, 0x6}; mov.b64 {%r2, %r3}, %rd4;"), 5u);
  EXPECT_EQ(Value("mov.b64 %rd4, {0x5, 0x6}; mov.b64 {%r3, %r2}, %rd4;"), 6u);
}

TEST(Ptx, RoundsFloatsAsIeee754) {
  // 1 + 2^-12 squared: the last term is lost in the product and kept in fma.
  const std::string x = "mov.f32 %f1, 0f3F800800; ";
  EXPECT_EQ(Float(x + "mul.rn.f32 %f2, %f1, %f1; sub.f32 %f2, %f2, 0f3F801000;"), 0.0f);
  EXPECT_EQ(Float(x + "fma.rn.f32 %f2, %f1, %f1, 0fBF801000;"), 0x1p-24f);
  EXPECT_EQ(Float("max.f32 %f2, 0f7FC00000, 0fC0000000;"), -2.0f);
  EXPECT_TRUE(std::isnan(Float("max.NaN.f32 %f2, 0f7FC00000, 0fC0000000;")));
  EXPECT_TRUE(std::signbit(Float("min.f32 %f2, 0f00000000, 0f80000000;")));
  EXPECT_EQ(Float("ex2.approx.ftz.f32 %f2, 0fC3020000;"), 0.0f);  // 2^-130
  EXPECT_EQ(Float("rcp.approx.ftz.f32 %f2, 0f7F800000;"), 0.0f);
}

TEST(Ptx, ConvertsBetweenTypes) {
  EXPECT_EQ(Value("cvt.rni.s32.f32 %r2, 0f40200000;"), 2u);  // 2.5
  EXPECT_EQ(Value("cvt.rzi.s32.f32 %r2, 0fC0200000;"), static_cast<uint32_t>(-2));
  EXPECT_EQ(Value("cvt.rzi.s32.f32 %r2, 0f7F800000;"), 0x7fffffffu);
  EXPECT_EQ(Value("cvt.rzi.u32.f32 %r2, 0f7FC00000;"), 0u);
  EXPECT_EQ(Value("cvt.s32.s8 %r2, 0x180;"), 0xffffff80u);
  EXPECT_EQ(Value("cvt.u32.u16 %r2, 0x18000;"), 0x8000u);
  EXPECT_EQ(Float("cvt.rn.f32.u64 %f2, 0xffffffffffffffff;"), 0x1p64f);
  // The first input in the upper half; to the nearest even.
  EXPECT_EQ(Value("cvt.rn.bf16x2.f32 %r2, 0f3F808000, 0f3F818000;"), 0x3f803f82u);
  EXPECT_EQ(Value("{ cvt.rn.bf16.f32 %rs1, 0fFFC00000;} cvt.u32.u16 %r2, %rs1;"), 0x7fffu);
}

TEST(Ptx, ComparesWithNan) {
  const auto compare = [](const std::string& how) {
    return Value("setp." + how + ".f32 %p1, 0f7FC00000, 0f3F800000; selp.u32 %r2, 1, 0, %p1;");
  };
  for (const char* how : {"eq", "ne", "lt", "le", "gt", "ge", "num"}) EXPECT_EQ(compare(how), 0u);
  for (const char* how : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"}) {
    EXPECT_EQ(compare(how), 1u);
  }
  EXPECT_EQ(
      Value("setp.lt.s32 %p1, 1, 2; setp.gt.and.s32 %p2|%p3, 1, 2, %p1; @%p3 bra yes; mov.u32 "
            "%r2, 0; bra.uni end; yes: mov.u32 %r2, 1; end:"),
      1u);
}

TEST(Ptx, ReadsStructsOfParametersVariablesAndLocalMemory) {
  EXPECT_EQ(Value("mov.b64 %rd4, pair; ld.param.u64 %rd5, [%rd4]; cvt.u32.u64 %r2, %rd5;"),
            static_cast<uint32_t>(-7));
  EXPECT_EQ(Float("ld.param.v2.f32 {%f1, %f3}, [pair+8]; mul.f32 %f2, %f1, %f3;"), 0.625f);
  EXPECT_EQ(Value("mov.u64 %rd4, table; ld.global.nc.u32 %r2, [%rd4+4];"), 0x107u);
  EXPECT_EQ(Value("mov.u64 %rd4, local; cvta.local.u64 %rd5, %rd4; st.u32 [%rd5+12], 9; "
                  "ld.local.u32 %r2, [%rd4+12];"),
            9u);
  EXPECT_EQ(Value("ld.local.u32 %r2, [local+8];"), 0xffffffffu);  // nothing was stored
}

TEST(Ptx, CallsFunctions) {
  EXPECT_EQ(Value(R"({
    .reg .b32 temp;
    .param .b32 argument; st.param.b32 [argument+0], 21;
    .param .b32 answer;
    call.uni (answer), twice, (argument);
    ld.param.b32 %r2, [answer+0]; })"),
            42u);
}

TEST(Ptx, ThreadsMeetAtBarriers) {
  const Result result = RunBody(R"(
    shl.b32 %r3, %r1, 2; mov.u32 %r4, dynamic; add.s32 %r5, %r4, %r3;
    st.shared.u32 [%r5], %r1;
    bar.sync 0;
    sub.s32 %r6, %r4, %r3; ld.shared.u32 %r2, [%r6+156]; st.global.u32 [%rd3], %r2;)",
                                40, 160);
  ASSERT_TRUE(result.status.ok()) << result.status;
  for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(result.out[i], 39 - i);
}

TEST(Ptx, CopiesOnlyWhenTheCopyIsWaitedFor) {
  const std::string copy =
      "mov.u32 %r4, shared; cp.async.cg.shared.global [%r4], [%rd2], 16, 8; "
      "cp.async.commit_group; ";
  const std::string load = "ld.shared.u32 %r2, [%r4+4]; ld.shared.u32 %r3, [%r4+8];";
  const auto run = [&](const std::string& wait, const char* what) {
    return RunBody("setp.ne.u32 %p1, %r1, 0; @%p1 ret; " + copy + wait + load +
                       "st.global.u32 [%rd3], " + what + ";",
                   4);
  };
  EXPECT_EQ(run("cp.async.wait_group 1; ", "%r2").out[0], 0xffffffffu);
  EXPECT_EQ(run("cp.async.wait_group 0; ", "%r2").out[0], 101u);
  EXPECT_EQ(run("cp.async.wait_group 0; ", "%r3").out[0], 0u);
}

//---- What is wrong ------------------------------------------------------------------------------

TEST(Ptx, NamesAnInstructionThatItDoesNotKnow) {
  EXPECT_THAT(Error("wgmma.fence.sync.aligned;"),
              HasSubstr("wgmma.fence.sync.aligned: the interp"));
  EXPECT_THAT(Error("add.sat.s32 %r2, %r1, 1;"), HasSubstr("add.sat.s32"));
  EXPECT_THAT(Error("mov.u32 %r2, %clock;"), HasSubstr("the name %clock is not known"));
  EXPECT_THAT(Error("mov.u32 %r2, %r40;"), HasSubstr("%r40"));
  EXPECT_THAT(Error("bra nowhere;"), HasSubstr("no such label"));
}

TEST(Ptx, FindsAccessesOutsideOfMemory) {
  EXPECT_THAT(Error("ld.global.u32 %r2, [%rd3+4];"), HasSubstr("in no array: ld.global.u32"));
  EXPECT_THAT(Error("st.global.u32 [%rd3+-4], 1;"), HasSubstr("in no array: st.global.u32"));
  EXPECT_THAT(Error("ld.shared.u32 %r2, [1024];"), HasSubstr("1024 bytes of shared memory"));
  EXPECT_THAT(Error("mov.u32 %r4, dynamic; ld.shared.u32 %r2, [%r4];"), HasSubstr("shared memory"));
  EXPECT_THAT(Error("st.local.u32 [local+16], 1;"), HasSubstr("16 bytes of local memory"));
  EXPECT_THAT(Error("ld.param.u32 %r2, [pair+16];"), HasSubstr("parameter memory"));
  EXPECT_THAT(Error("cp.async.cg.shared.global [1008], [%rd2], 16;"), HasSubstr("in no array"));
}

TEST(Ptx, FindsMisalignedAccesses) {
  EXPECT_THAT(Error("ld.global.u32 %r2, [%rd3+2];", 2), HasSubstr("no multiple of that"));
  EXPECT_THAT(Error("ld.shared.v2.f32 {%f1, %f2}, [shared+4];"), HasSubstr("no multiple of that"));
}

TEST(Ptx, FindsUsesOfRegistersThatNothingSet) {
  EXPECT_THAT(Error("st.global.u32 [%rd3], %r7;"), HasSubstr("nothing has set %r7"));
  // Through arithmetic.
  EXPECT_THAT(Error("add.s32 %r2, %r7, 1; st.global.u32 [%rd3], %r2;"),
              HasSubstr("nothing has set %r2"));
  EXPECT_THAT(Error("add.s64 %rd4, %rd3, %rd9; ld.global.u32 %r2, [%rd4];"),
              HasSubstr("nothing has set %rd4"));
  EXPECT_THAT(Error("setp.eq.s32 %p1, %r7, 0; @%p1 bra end; end:"),
              HasSubstr("nothing has set its guard"));
  EXPECT_THAT(Error("bar.warp.sync %r7;", 32), HasSubstr("nothing has set %r7"));
}

TEST(Ptx, AllowsRegistersThatNothingSetWhereTheyDoNotCount) {
  EXPECT_EQ(Value("mov.u32 %r3, %r7; add.s32 %r4, %r3, 1; mov.u32 %r2, 5;"), 5u);
  EXPECT_EQ(Value("setp.eq.s32 %p1, %r1, 0; selp.b32 %r2, 6, %r7, %p1;"), 6u);
  EXPECT_EQ(Value("setp.ne.s32 %p1, %r1, 0; and.pred %p2, %p1, %p7; selp.b32 %r2, 6, 7, %p2;"), 7u);
  EXPECT_EQ(Value("setp.eq.s32 %p1, %r1, 0; or.pred %p2, %p7, %p1; selp.b32 %r2, 6, 7, %p2;"), 6u);
}

TEST(Ptx, FindsThreadsThatDoNotMeet) {
  const std::string first = "setp.eq.u32 %p1, %r1, 0; ";
  EXPECT_THAT(Error(first + "@%p1 ret; bar.sync 0;", 64), HasSubstr("which has ended"));
  EXPECT_THAT(Error(first + "@%p1 bra a; bar.sync 0; bra.uni b; a: bar.sync 0; b:", 64),
              HasSubstr("of the same warp waits"));
  EXPECT_THAT(Error(first + "@%p1 bar.sync 0;", 64), HasSubstr("leaves out this thread"));
  EXPECT_THAT(Error("shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff;", 32), HasSubstr("a part of"));
  EXPECT_THAT(Error("shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;", 31), HasSubstr("fewer than 32"));
}

TEST(Ptx, ChecksLaunches) {
  EXPECT_THAT(Error("", 65), HasSubstr("65 threads in a block, where the PTX has at most 64"));
}

TEST(Ptx, SaysWhereAnErrorIs) {
  const std::string error = Error("ld.global.u32 %r2, [%rd3+64];", 40);
  EXPECT_THAT(error, HasSubstr("ld.global.u32 %r2, [%rd3+64], line 31 of the PTX"));
  EXPECT_THAT(error, HasSubstr("thread (24,0,0) of block (0,0,0)"));
}

//---- Kernels that nvcc made, damaged ------------------------------------------------------------

// The product of tests/emulation/gpu_test.cpp by this PTX; the largest error.
double ErrorOfProduct(const std::string& ptx) {
  Library library;
  const absl::Status status = library.Add(ptx, "gpu_kernels.cu");
  EXPECT_TRUE(status.ok()) << status;
  library.Install();
  const auto a = Values<BFloat16>::Random(16 * 16, 3), b = Values<BFloat16>::Random(16 * 8, 4);
  const auto c = Floats::Random(16 * 8, 5);
  const reference::Array expected =
      reference::Product(a.Doubles(), false, b.Doubles(), false, 16, 8, 16) + c.Doubles();
  double error = 0;
  {
    const DeviceArray<BFloat16> device_a(a), device_b(b);
    const DeviceArray<float> device_c(c);
    DeviceArray<float> d(16 * 8);
    EXPECT_EQ(gpu_kernels::MatrixProduct(d.data(), device_a.data(), device_b.data(),
                                         device_c.data(), gpu_kernels::Fragments::kTransposed),
              cudaSuccess);
    for (int i = 0; i < 16 * 8; ++i) error = std::max(error, std::abs(d[i] - expected[i]));
  }
  simt::SetRunner(nullptr);
  simt::SetAccessChecker(nullptr);
  for (const std::string& report : simt::TakeReports()) ADD_FAILURE() << report;
  return error;
}

std::string ProductPtx() {
  const auto ptx = ReadPtx("tests/emulation/gpu_kernels.cu", "sm_90");
  EXPECT_TRUE(ptx.ok()) << ptx.status();
  return ptx.ok() ? *ptx : "";
}
// Exchanges the first two registers of the group behind `behind`, wherever that is; how often it
// was.
int SwapRegisters(std::string& ptx, const std::string& behind) {
  const std::regex pattern("(" + behind + "\\s*)\\{(%\\w+), *(%\\w+)");
  const auto count = std::distance(std::sregex_iterator(ptx.begin(), ptx.end(), pattern), {});
  ptx = std::regex_replace(ptx, pattern, "$1{$3, $2");
  return static_cast<int>(count);
}
constexpr char kMma[] = "mma\\.sync[.a-z0-9]*";
constexpr char kGroup[] = "\\s*\\{[^}]*\\},";

TEST(DamagedPtx, MultipliesCorrectlyWithoutDamage) {
  EXPECT_TRUE(ErrorOfProduct(ProductPtx()) <= 1e-6);
}

TEST(DamagedPtx, SwappedRegistersOfAnMmaAreFound) {
  // Of D, A, B and C, in the order of the operands.
  std::string behind = kMma;
  for (int operand = 0; operand < 4; ++operand) {
    std::string ptx = ProductPtx();
    EXPECT_GE(SwapRegisters(ptx, behind), 5) << operand;
    EXPECT_TRUE(ErrorOfProduct(ptx) > 0.1) << operand;
    behind += kGroup;
  }
}

TEST(DamagedPtx, SwappedRegistersOfALdMatrixAreFound) {
  std::string ptx = ProductPtx();
  EXPECT_GE(SwapRegisters(ptx, "ldmatrix\\.sync\\.aligned\\.m8n8\\.x[24]\\.trans\\.shared\\.b16"),
            2);
  EXPECT_TRUE(ErrorOfProduct(ptx) > 0.1);
}

}  // namespace
}  // namespace zerobox::ptx
