// SPDX-License-Identifier: Apache-2.0
//
// A picture in memory: rectangles and text, then PNG. Lengths are pixels, y grows downwards. The
// same calls make the same bytes.
#ifndef ZEROBOX_TRAINER_PICTURE_H_
#define ZEROBOX_TRAINER_PICTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zerobox {

struct Color {
  uint8_t red = 0, green = 0, blue = 0;
  friend bool operator==(const Color&, const Color&) = default;
};
// 0x2b62ad.
constexpr Color Rgb(uint32_t color) {
  return {static_cast<uint8_t>(color >> 16), static_cast<uint8_t>(color >> 8),
          static_cast<uint8_t>(color)};
}
// `share` of `color` over `ground`.
Color Blend(Color color, Color ground, double share);

// A TrueType font. Characters that it lacks are drawn as its box for them.
class Font {
 public:
  // `bytes` of a font file outlive the font; aborts where they are none.
  explicit Font(std::string_view bytes);
  ~Font();
  Font(const Font&) = delete;
  Font& operator=(const Font&) = delete;

  // Of UTF-8 text with letters of `size` pixels from ascender to descender, kerned.
  double Width(std::string_view text, double size) const;

 private:
  friend class Picture;
  struct Face;
  std::unique_ptr<Face> face_;
};

// Pixels [left, right) x [top, bottom).
struct Box {
  int left = 0, top = 0, right = 0, bottom = 0;
  int width() const { return right - left; }
  int height() const { return bottom - top; }
};

enum class Align : uint8_t { kLeft, kCenter, kRight };

class Picture {
 public:
  Picture(int width, int height, Color ground);
  int width() const { return width_; }
  int height() const { return height_; }
  // What lies outside the picture is cut off.
  void Fill(const Box& box, Color color);
  // Inside the box, `line` pixels wide.
  void Outline(const Box& box, int line, Color color);
  // From `left` to `right`, `line` pixels below `top`; drawn and blank for `dash` pixels in turn,
  // or without blanks where that is 0.
  void Rule(int left, int right, int top, int line, int dash, Color color);
  // `x` is the text's left end, middle or right end; `baseline` the line that letters stand on.
  void Text(double x, int baseline, std::string_view text, const Font& font, double size,
            Color color, Align align = Align::kLeft);

  Color At(int x, int y) const;
  // The bytes of a PNG file, 8 bits a channel, without alpha.
  std::string Png() const;

 private:
  int width_, height_;
  std::vector<Color> pixels_;  // rows from the top
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_PICTURE_H_
