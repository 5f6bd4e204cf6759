// SPDX-License-Identifier: Apache-2.0
#include "trainer/picture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#define STBTT_STATIC
#define STB_TRUETYPE_IMPLEMENTATION
#include <stb/stb_truetype.h>
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>

namespace zerobox {
namespace {

// The characters of UTF-8 text; a byte that begins none is one that no font has.
std::vector<int> CodePoints(std::string_view text) {
  constexpr int kNoCharacter = 0x10ffff;
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i) { return i < text.size() && (byte(i) & 0xc0) == 0x80; };
  std::vector<int> points;
  for (size_t i = 0; i < text.size();) {
    const int first = byte(i++);
    const int more = first < 0xc0 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;  // bytes
    int point = first & (more == 0 ? 0xff : 0x3f >> more);
    bool whole = first < 0x80 || more > 0;
    for (int j = 0; j < more && whole; ++j) {
      whole = follows(i + static_cast<size_t>(j));
      if (whole) point = point << 6 | (byte(i + static_cast<size_t>(j)) & 0x3f);
    }
    points.push_back(whole ? point : kNoCharacter);
    if (whole) i += static_cast<size_t>(more);
  }
  return points;
}

}  // namespace

Color Blend(Color color, Color ground, double share) {
  const auto mixed = [share](uint8_t over, uint8_t under) {
    return static_cast<uint8_t>(std::lround(over * share + under * (1 - share)));
  };
  return {mixed(color.red, ground.red), mixed(color.green, ground.green),
          mixed(color.blue, ground.blue)};
}

//---- Font

struct Font::Face {
  stbtt_fontinfo info{};

  // Calls `place` for each character with its glyph and its left end; returns the right end.
  double Walk(std::string_view text, double size,
              const std::function<void(int glyph, double x)>& place) const {
    const double scale = stbtt_ScaleForPixelHeight(&info, static_cast<float>(size));
    double x = 0;
    int before = -1;
    for (const int point : CodePoints(text)) {
      const int glyph = stbtt_FindGlyphIndex(&info, point);
      if (before >= 0) x += scale * stbtt_GetGlyphKernAdvance(&info, before, glyph);
      if (place) place(glyph, x);
      int advance = 0, bearing = 0;
      stbtt_GetGlyphHMetrics(&info, glyph, &advance, &bearing);
      x += scale * advance;
      before = glyph;
    }
    return x;
  }
};

Font::Font(std::string_view bytes) : face_(std::make_unique<Face>()) {
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  if (stbtt_InitFont(&face_->info, data, 0) == 0) std::abort();
}
Font::~Font() = default;

double Font::Width(std::string_view text, double size) const {
  return face_->Walk(text, size, nullptr);
}

//---- Picture

Picture::Picture(int width, int height, Color ground)
    : width_(width),
      height_(height),
      pixels_(static_cast<size_t>(width) * static_cast<size_t>(height), ground) {}

void Picture::Fill(const Box& box, Color color) {
  for (int y = std::max(box.top, 0); y < std::min(box.bottom, height_); ++y) {
    for (int x = std::max(box.left, 0); x < std::min(box.right, width_); ++x) {
      pixels_[static_cast<size_t>(y) * width_ + x] = color;
    }
  }
}

void Picture::Outline(const Box& box, int line, Color color) {
  Fill({box.left, box.top, box.right, std::min(box.top + line, box.bottom)}, color);
  Fill({box.left, std::max(box.bottom - line, box.top), box.right, box.bottom}, color);
  Fill({box.left, box.top, std::min(box.left + line, box.right), box.bottom}, color);
  Fill({std::max(box.right - line, box.left), box.top, box.right, box.bottom}, color);
}

void Picture::Rule(int left, int right, int top, int line, int dash, Color color) {
  const bool dashed = dash > 0;
  const int drawn = dashed ? dash : right - left;
  const int step = dashed ? 2 * dash : drawn;
  for (int x = left; x < right; x += step) {
    Fill({x, top, std::min(x + drawn, right), top + line}, color);
  }
}

void Picture::Text(double x, int baseline, std::string_view text, const Font& font, double size,
                   Color color, Align align) {
  const stbtt_fontinfo& info = font.face_->info;
  const float scale = stbtt_ScaleForPixelHeight(&info, static_cast<float>(size));
  if (align != Align::kLeft) x -= font.Width(text, size) * (align == Align::kCenter ? 0.5 : 1);
  font.face_->Walk(text, size, [&](int glyph, double offset) {
    const double left = std::floor(x + offset);
    const auto shift = static_cast<float>(x + offset - left);  // of a pixel
    int x0 = 0, y0 = 0, x1 = 0, y1 = 0;
    stbtt_GetGlyphBitmapBoxSubpixel(&info, glyph, scale, scale, shift, 0, &x0, &y0, &x1, &y1);
    const int columns = x1 - x0, rows = y1 - y0;
    if (columns <= 0 || rows <= 0) return;  // a blank
    std::vector<unsigned char> cover(static_cast<size_t>(columns) * rows);
    stbtt_MakeGlyphBitmapSubpixel(&info, cover.data(), columns, rows, columns, scale, scale, shift,
                                  0, glyph);
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        const int px = static_cast<int>(left) + x0 + column, py = baseline + y0 + row;
        if (px < 0 || py < 0 || px >= width_ || py >= height_) continue;
        Color& pixel = pixels_[static_cast<size_t>(py) * width_ + px];
        pixel = Blend(color, pixel, cover[static_cast<size_t>(row) * columns + column] / 255.0);
      }
    }
  });
}

Color Picture::At(int x, int y) const { return pixels_[static_cast<size_t>(y) * width_ + x]; }

std::string Picture::Png() const {
  static_assert(sizeof(Color) == 3, "pixels are handed over as they are");
  std::string png;
  const auto write = [](void* context, void* data, int size) {
    static_cast<std::string*>(context)->append(static_cast<const char*>(data),
                                               static_cast<size_t>(size));
  };
  if (stbi_write_png_to_func(write, &png, width_, height_, 3, pixels_.data(),
                             width_ * static_cast<int>(sizeof(Color))) == 0) {
    std::abort();  // out of memory
  }
  return png;
}

}  // namespace zerobox
