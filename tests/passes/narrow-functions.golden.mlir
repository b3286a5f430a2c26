module {
  func.func @main(%arg0: tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, %arg1: tensor<?x4xf16, #dhlo.shape<["n", "4"]>>) -> (tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) {
    %0 = "dhlo.convert"(%arg0) : (tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %1 = "dhlo.sigmoid_short"(%0) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %2 = "dhlo.mul"(%0, %1) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %3 = "dhlo.convert"(%2) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>
    %4 = "dhlo.convert"(%arg1) : (tensor<?x4xf16, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %5 = "dhlo.sigmoid_short"(%4) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %6 = "dhlo.mul"(%5, %0) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %7 = "dhlo.mul"(%6, %4) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %8 = "dhlo.convert"(%7) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf16, #dhlo.shape<["n", "4"]>>
    %9 = "dhlo.convert"(%5) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>
    %10 = "dhlo.sigmoid_short"(%arg0) : (tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>
    %11 = "dhlo.sigmoid"(%0) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %12 = "dhlo.sub"(%0, %11) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %13 = "dhlo.convert"(%12) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>
    %14 = "dhlo.sigmoid"(%4) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %15 = "dhlo.mul"(%14, %4) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %16 = "dhlo.sqrt"(%15) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %17 = "dhlo.sigmoid"(%12) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    return %3, %8, %9, %10, %13, %16, %17 : tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
  }
}
