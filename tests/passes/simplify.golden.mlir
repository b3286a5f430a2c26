module {
  func.func @main(%arg0: tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, %arg1: tensor<?xf32, #dhlo.shape<["m"]>>, %arg2: tensor<?xi64, #dhlo.shape<["n"]>>) -> (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi1, #dhlo.shape<["n"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<f32>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?xi64, #dhlo.shape<["n"]>>) {
    %0 = "dhlo.broadcast"(%arg1) {dims = [1]} : (tensor<?xf32, #dhlo.shape<["m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %1 = "dhlo.full"() {value = "true"} : () -> tensor<?xi1, #dhlo.shape<["n"]>>
    %2 = "dhlo.full"() {value = "2.0"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %3 = "dhlo.full"() {value = "1"} : () -> tensor<f32>
    %4 = "dhlo.full"() {value = "2.0"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %5 = "dhlo.mul"(%arg0, %4) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %6 = "dhlo.sigmoid"(%5) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %7 = "dhlo.mul"(%6, %4) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    return %arg0, %arg0, %0, %arg0, %arg2, %1, %arg0, %2, %3, %7, %arg2 : tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi1, #dhlo.shape<["n"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<f32>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?xi64, #dhlo.shape<["n"]>>
  }
  func.func @padded(%arg0: tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "w"]>>, %arg1: tensor<4x3x3x3xf32>) -> (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "floordiv(h, 2)", "floordiv(w, 2)"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "h + w"]>>) {
    %0 = "dhlo.conv"(%arg0, %arg1) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0, 1, 1], stride = [2, 2], transposed = false} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "w"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "floordiv(h, 2)", "floordiv(w, 2)"]>>
    %1 = "dhlo.conv"(%arg0, %arg1) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "w"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
    %2 = "dhlo.pad"(%arg0) {low = ["0", "0", "1", "1"], value = 1.000000e+00 : f64} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "w"]>>) -> tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>
    %3 = "dhlo.conv"(%2, %arg1) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
    %4 = "dhlo.pad"(%arg0) {low = ["0", "0", "0", "h"], value = 0.000000e+00 : f64} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "w"]>>) -> tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "h + w"]>>
    %5 = "dhlo.conv"(%4, %arg1) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h", "h + w"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "h + w"]>>
    return %0, %1, %3, %5 : tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "floordiv(h, 2)", "floordiv(w, 2)"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "h + w"]>>
  }
  func.func @rounded(%arg0: tensor<?x?xbf16, #dhlo.shape<["n", "m"]>>, %arg1: tensor<?x?xi1, #dhlo.shape<["n", "m"]>>) -> (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) {
    %0 = "dhlo.convert"(%arg0) : (tensor<?x?xbf16, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %1 = "dhlo.full"() {value = "6.0"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %2 = "dhlo.minimum"(%0, %1) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %3 = "dhlo.select"(%arg1, %2, %0) : (tensor<?x?xi1, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %4 = "dhlo.add"(%0, %1) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %5 = "dhlo.convert"(%4) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xbf16, #dhlo.shape<["n", "m"]>>
    %6 = "dhlo.convert"(%5) : (tensor<?x?xbf16, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %7 = "dhlo.full"() {value = "0.1"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %8 = "dhlo.maximum"(%0, %7) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %9 = "dhlo.convert"(%8) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xbf16, #dhlo.shape<["n", "m"]>>
    %10 = "dhlo.convert"(%9) : (tensor<?x?xbf16, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    return %3, %6, %10 : tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
  }
  func.func @bounded(%arg0: tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> (tensor<?x?xf16, #dhlo.shape<["n", "m"]>>, tensor<?x?xf16, #dhlo.shape<["n", "m"]>>) {
    %0 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %1 = "dhlo.full"() {value = "6.0"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %2 = "dhlo.maximum"(%arg0, %0) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %3 = "dhlo.minimum"(%2, %1) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %4 = "dhlo.convert"(%3) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf16, #dhlo.shape<["n", "m"]>>
    %5 = "dhlo.neg"(%arg0) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %6 = "dhlo.convert"(%5) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf16, #dhlo.shape<["n", "m"]>>
    %7 = "dhlo.convert"(%6) : (tensor<?x?xf16, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %8 = "dhlo.full"() {value = "0.1"} : () -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %9 = "dhlo.minimum"(%7, %8) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>, tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "m"]>>
    %10 = "dhlo.convert"(%9) : (tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?x?xf16, #dhlo.shape<["n", "m"]>>
    return %4, %10 : tensor<?x?xf16, #dhlo.shape<["n", "m"]>>, tensor<?x?xf16, #dhlo.shape<["n", "m"]>>
  }
  func.func @padding(%arg0: tensor<?x?xf32, #dhlo.shape<["n", "m"]>>) -> tensor<?xi64, #dhlo.shape<["n"]>> {
    %0 = "dhlo.full"() {value = "0"} : () -> tensor<?xi64, #dhlo.shape<["n"]>>
    return %0 : tensor<?xi64, #dhlo.shape<["n"]>>
  }
}
