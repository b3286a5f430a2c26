!t = tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
!u = tensor<?x?xf32, #dhlo.shape<["m", "n"]>>
!flat = tensor<?xf32, #dhlo.shape<["n*m"]>>
!row = tensor<?xf32, #dhlo.shape<["m"]>>
!row1 = tensor<1x?xf32, #dhlo.shape<["1", "m"]>>
!i = tensor<?xi64, #dhlo.shape<["n"]>>
!b = tensor<?xi1, #dhlo.shape<["n"]>>
!image = tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "w"]>>
!more1 = tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 1", "w + 1"]>>
!more2 = tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>
!morew = tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "h + w"]>>
!strided = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "floordiv(h, 2)", "floordiv(w, 2)"]>>
!same = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
!grown = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "h + w"]>>
!half = tensor<?x?xbf16, #dhlo.shape<["n", "m"]>>
!small = tensor<?x?xf16, #dhlo.shape<["n", "m"]>>
module {
  // Views of views become one view, or none.
  func.func @main(%x: !t, %r: !row, %i: !i) -> (!t, !t, !t, !t, !i, !b, !t, !t, tensor<f32>, !t, !i) {
    %t0 = "dhlo.transpose"(%x) {perm = [1, 0]} : (!t) -> !u
    %t1 = "dhlo.transpose"(%t0) {perm = [1, 0]} : (!u) -> !t
    %f0 = "dhlo.reshape"(%x) : (!t) -> !flat
    %f1 = "dhlo.reshape"(%f0) : (!flat) -> !t
    %b0 = "dhlo.broadcast"(%r) {dims = [1]} : (!row) -> !row1
    %b1 = "dhlo.broadcast"(%b0) {dims = [0, 1]} : (!row1) -> !t
    %s = "dhlo.slice"(%x) {starts = ["0", "0"], steps = [1, 1]} : (!t) -> !t
    // Arithmetic with neutral constants; integers only where floats would lose the sign of a zero.
    %zero = "dhlo.full"() {value = "0"} : () -> !i
    %i0 = "dhlo.add"(%i, %zero) : (!i, !i) -> !i
    // Positions are never negative.
    %p = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> !i
    %ge = "dhlo.ge"(%p, %zero) : (!i, !i) -> !b
    // Looking up each position is the operand itself; converting a constant is a constant.
    %all = "dhlo.take"(%x, %p) {dims = [0], at = 0 : i64, wrap = false} : (!t, !i) -> !t
    %c = "dhlo.full"() {value = "2"} : () -> tensor<?x?xi32, #dhlo.shape<["n", "m"]>>
    %cf = "dhlo.convert"(%c) : (tensor<?x?xi32, #dhlo.shape<["n", "m"]>>) -> !t
    // A reduction over no dim.
    %one = "dhlo.full"() {value = "1"} : () -> tensor<f32>
    %sum = "dhlo.reduce"(%one) {how = "sum", dims = []} : (tensor<f32>) -> tensor<f32>
    // 1 + tanh(x) as gelu's approximation has it.
    %ones = "dhlo.full"() {value = "1.0"} : () -> !t
    %tanh = "dhlo.tanh"(%x) : (!t) -> !t
    %gate = "dhlo.add"(%ones, %tanh) : (!t, !t) -> !t
    // A choice that is always the same.
    %never = "dhlo.full"() {value = "false"} : () -> !b
    %chosen = "dhlo.select"(%never, %zero, %i) : (!b, !i, !i) -> !i
    return %t1, %f1, %b1, %s, %i0, %ge, %all, %cf, %sum, %gate, %chosen : !t, !t, !t, !t, !i, !b, !t, !t, tensor<f32>, !t, !i
  }
  // Zeros around the image become the convolution's padding where they are the same at all sizes; other values don't.
  func.func @padded(%x: !image, %w: tensor<4x3x3x3xf32>) -> (!strided, !same, !same, !grown) {
    %after = "dhlo.pad"(%x) {low = ["0", "0", "0", "0"], value = 0.0 : f64} : (!image) -> !more1
    %a = "dhlo.conv"(%after, %w) {stride = [2, 2], padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64} : (!more1, tensor<4x3x3x3xf32>) -> !strided
    %around = "dhlo.pad"(%x) {low = ["0", "0", "1", "1"], value = 0.0 : f64} : (!image) -> !more2
    %b = "dhlo.conv"(%around, %w) {stride = [1, 1], padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64} : (!more2, tensor<4x3x3x3xf32>) -> !same
    %ones = "dhlo.pad"(%x) {low = ["0", "0", "1", "1"], value = 1.0 : f64} : (!image) -> !more2
    %c = "dhlo.conv"(%ones, %w) {stride = [1, 1], padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64} : (!more2, tensor<4x3x3x3xf32>) -> !same
    %varying = "dhlo.pad"(%x) {low = ["0", "0", "0", "h"], value = 0.0 : f64} : (!image) -> !morew
    %d = "dhlo.conv"(%varying, %w) {stride = [1, 1], padding = [1, 1], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64} : (!morew, tensor<4x3x3x3xf32>) -> !grown
    return %a, %b, %c, %d : !strided, !same, !same, !grown
  }
  // What only chooses among numbers of a narrow type needs no rounding to it; sums do, and so do constants that it hasn't.
  func.func @rounded(%x: !half, %b: tensor<?x?xi1, #dhlo.shape<["n", "m"]>>) -> (!t, !t, !t) {
    %wide = "dhlo.convert"(%x) : (!half) -> !t
    %six = "dhlo.full"() {value = "6.0"} : () -> !t
    %least = "dhlo.minimum"(%wide, %six) : (!t, !t) -> !t
    %same = "dhlo.select"(%b, %least, %wide) : (tensor<?x?xi1, #dhlo.shape<["n", "m"]>>, !t, !t) -> !t
    %n0 = "dhlo.convert"(%same) : (!t) -> !half
    %w0 = "dhlo.convert"(%n0) : (!half) -> !t
    %sum = "dhlo.add"(%wide, %six) : (!t, !t) -> !t
    %n1 = "dhlo.convert"(%sum) : (!t) -> !half
    %w1 = "dhlo.convert"(%n1) : (!half) -> !t
    %tenth = "dhlo.full"() {value = "0.1"} : () -> !t
    %most = "dhlo.maximum"(%wide, %tenth) : (!t, !t) -> !t
    %n2 = "dhlo.convert"(%most) : (!t) -> !half
    %w2 = "dhlo.convert"(%n2) : (!half) -> !t
    return %w0, %w1, %w2 : !t, !t, !t
  }
  // Bounds that are numbers of f16 come before the rounding to it, and others after it.
  func.func @bounded(%x: !t) -> (!small, !small) {
    %n = "dhlo.convert"(%x) : (!t) -> !small
    %wide = "dhlo.convert"(%n) : (!small) -> !t
    %zero = "dhlo.full"() {value = "0.0"} : () -> !t
    %six = "dhlo.full"() {value = "6.0"} : () -> !t
    %most = "dhlo.maximum"(%wide, %zero) : (!t, !t) -> !t
    %both = "dhlo.minimum"(%most, %six) : (!t, !t) -> !t
    %n0 = "dhlo.convert"(%both) : (!t) -> !small
    %y = "dhlo.neg"(%x) : (!t) -> !t
    %m = "dhlo.convert"(%y) : (!t) -> !small
    %back = "dhlo.convert"(%m) : (!small) -> !t
    %tenth = "dhlo.full"() {value = "0.1"} : () -> !t
    %least = "dhlo.minimum"(%back, %tenth) : (!t, !t) -> !t
    %n1 = "dhlo.convert"(%least) : (!t) -> !small
    return %n0, %n1 : !small, !small
  }
  // How many zeros a mask of ones begins with: none.
  func.func @padding(%x: tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> (tensor<?xi64, #dhlo.shape<["n"]>>) {
    %ones = "dhlo.full"() {value = "1"} : () -> tensor<?x?xi64, #dhlo.shape<["n", "m"]>>
    %count = "dhlo.scan"(%ones) {how = "sum", dim = 1 : i64} : (tensor<?x?xi64, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xi64, #dhlo.shape<["n", "m"]>>
    %zero = "dhlo.full"() {value = "0"} : () -> tensor<?x?xi64, #dhlo.shape<["n", "m"]>>
    %none = "dhlo.eq"(%count, %zero) : (tensor<?x?xi64, #dhlo.shape<["n", "m"]>>, tensor<?x?xi64, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xi1, #dhlo.shape<["n", "m"]>>
    %numbers = "dhlo.convert"(%none) : (tensor<?x?xi1, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xi64, #dhlo.shape<["n", "m"]>>
    %sum = "dhlo.reduce"(%numbers) {how = "sum", dims = [1]} : (tensor<?x?xi64, #dhlo.shape<["n", "m"]>>) -> tensor<?xi64, #dhlo.shape<["n"]>>
    return %sum : tensor<?xi64, #dhlo.shape<["n"]>>
  }
}
